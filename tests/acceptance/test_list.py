"""opsq list: newest first, page by page, filtered."""


def test_newest_comes_first_and_pages_join(queue):
    submissions = [queue.submit_lines(1) for _ in range(3)]
    first = queue.ok("list", "--json", "--limit", "2").json
    second = queue.ok("list", "--json", "--before", first["next"]).json
    found = [shape["submission_id"] for page in (first, second) for shape in page["submissions"]]
    assert found == submissions[::-1]
    assert second["next"] is None


def test_lines_have_fields_with_tabs_between(queue):
    submission = queue.submit_lines(2, "-m", "k=v")
    assert queue.ok("list").text.split("\t")[:5] == [submission, "open", "2", "0", "0"]


def test_filters_by_state_and_metadata(queue):
    done, waiting = queue.submit_lines(0, "-m", "k=1"), queue.submit_lines(1, "-m", "k=1")
    queue.submit_lines(1, "-m", 'k="1"')
    assert [line.split("\t")[0] for line in queue.ok("list", "-m", "k=1", "--state", "open").lines] == [waiting]
    assert [line.split("\t")[0] for line in queue.ok("list", "-m", "k=1", "--state", "completed").lines] == [done]


def test_nothing_is_an_empty_output_and_exit_0(queue):
    assert queue.ok("list").out == b""
    assert queue.ok("list", "--json").json == {"submissions": [], "next": None}


def test_unknown_state_is_exit_2(queue):
    assert queue("list", "--state", "done").status == 2


def test_list_is_whole_in_a_pipe_and_short_on_a_terminal(queue):
    submissions = [queue.submit_lines(0) for _ in range(103)][::-1]
    assert [line.split("\t")[0] for line in queue.ok("list").lines] == submissions
    document = queue.ok("list", "--json").json
    assert ([shape["submission_id"] for shape in document["submissions"]], document["next"]) == (submissions, None)
    drawn = queue.on_terminal("list").text
    assert (submissions[99] in drawn, submissions[100] in drawn) == (True, False)
    assert "There are 3 more" in drawn
    assert f"--before {submissions[99]}" in drawn
    assert "more" not in queue.on_terminal("list", "-n", "103").text


def test_times_select_by_when_it_was_submitted(queue):
    submission = queue.submit_lines(1)
    assert [line.split("\t")[0] for line in queue.ok("list", "--newer-than", "1h").lines] == [submission]
    assert queue.ok("list", "--older-than", "1h").lines == []
    assert [line.split("\t")[0] for line in queue.ok("list", "--older-than", "0s").lines] == [submission]
