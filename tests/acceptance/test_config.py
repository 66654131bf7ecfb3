"""opsq config: each setting, its value, and where it came from."""


def settings(ran):
    """The settings of a JSON document by name."""
    return {setting["name"]: setting for setting in ran.json["settings"]}


def test_each_value_names_its_source(opsq):
    config = opsq.folder / "config" / "opsq"
    config.mkdir(parents=True)
    (config / "opsq.toml").write_text("max_lost = 9\nmax_attempts = 9\n")
    opsq.environ |= {"XDG_CONFIG_HOME": str(config.parent), "OPSQ_MAX_ATTEMPTS": "7"}
    found = settings(opsq.ok("config", "--socket", "/tmp/opsq-x.sock", "--json"))
    assert (found["max_attempts"]["value"], found["max_attempts"]["source"]) == (7, "OPSQ_MAX_ATTEMPTS")
    assert (found["max_lost"]["value"], found["max_lost"]["source"]) == (9, str(config / "opsq.toml"))
    assert found["socket"]["source"] == "--socket"
    assert found["heartbeat_misses"]["source"] == "default"
    assert "max_attempts\t7\tOPSQ_MAX_ATTEMPTS" in opsq.ok("config").lines


def test_unknown_key_in_the_file_is_exit_2_and_names_the_nearest(opsq):
    (opsq.folder / "opsq").mkdir()
    (opsq.folder / "opsq" / "opsq.toml").write_text("max_atempts = 9\n")
    ran = opsq("config", environ={"XDG_CONFIG_HOME": str(opsq.folder)})
    assert ran.status == 2
    assert "max_attempts" in ran.err


def test_unknown_key_like_none_points_to_the_manual_and_not_to_itself(opsq):
    (opsq.folder / "opsq").mkdir()
    (opsq.folder / "opsq" / "opsq.toml").write_text("foo = 1\n")
    ran = opsq("config", environ={"XDG_CONFIG_HOME": str(opsq.folder)})
    assert "opsq.toml(5)" in ran.err
    assert "opsq config" not in ran.err
