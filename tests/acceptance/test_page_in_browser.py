"""The page of the gateway in Chromium: by keyboard, without scripts, live, and as axe-core judges it."""

import http.server
import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from needs import lack
from waiting import wait_until

DEADLINE_S = 180
CHROMIUM = "chromium: apt install chromium / brew install chromium"
AXE = "axe-core@4.14.1"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LOOKS = ((1280, "light"), (360, "dark"))


@pytest.fixture(scope="module")
def browser():
    """Chromium, started once."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        lack(CHROMIUM)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The script of axe-core, from a cache or by npm."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "opsq-tests" / AXE
    script = cache / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            lack("npm, for axe-core: apt install npm / brew install node")
        made = tmp_path_factory.mktemp("axe")
        command = [npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", made, AXE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode:
            lack(f"axe-core: `npm install {AXE}` said: {done.stderr.strip()[-300:]}")
        cache.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, cache, dirs_exist_ok=True)
    return script.read_text()


@pytest.fixture
def site(queue):
    """A gateway whose page operators may act from, in front of a queue with something of everything."""
    queue.file("access.log", b"".join(b"%d\n" % number for number in range(100)))
    logs = queue.ok("submit", "access.log", "--lines", "1", "-m", "tenant=acme", "--title", "Logs of May").text
    queue.ok("complete", queue.reserve())
    queue.ok("fail", "--delay", "1h", "--reason", "KeyError: name\n" * 9, queue.reserve())
    queue.reserve()
    dead = queue.submit_lines(2, "--on-dead", "keep", "-m", f"note=<b>{'long' * 200}</b>", "--priority", "1")
    queue.ok(
        "fail", "--no-retry", "--reason", "x" * 500, queue.ok("reserve", "-s", f"SelectOnly(submission={dead})").text
    )
    queue.ok("limit", "tenant", "--concurrency", "50")
    queue.ok("weight", "tenant=acme", "2")
    for name in ("nightly", "weekly"):
        queue.ok(
            "schedule", "add", name, "30 2 * * MON", "--tz", "America/Argentina/Buenos_Aires", "--title", "Reports"
        )
    queue.ok("schedule", "trigger", "nightly")
    queue.ok("schedule", "pause", "weekly", "--note", "until the migration is done")
    token = queue.ok("token", "create", "me", "--role", "operator").text
    with queue.running("gateway", "--listen", "127.0.0.1:0", "--allow-actions") as process:
        yield Site(process.stdout.readline().decode().strip(), token, logs, dead)


class Site:
    """Where the gateway is, and what is there."""

    def __init__(self, url, token, logs, dead):
        self.url, self.token, self.logs, self.dead = url, token, logs, dead
        of_one = [f"/submissions/{logs}", f"/submissions/{dead}", f"/submissions/{dead}/0", "/submissions/12"]
        strategy = "/strategies?s=OrElse(SelectOnly(kind=x),Fair(tenant))&try=1"
        lists = [
            "/",
            "/submissions",
            "/submissions?state=expired",
            "/dead",
            "/schedules",
            "/rules",
            "/history",
            "/sign-in",
        ]
        self.paths = [*lists, *of_one, strategy]


@contextmanager
def tab(browser, site, **options):
    """A page of a browser of its own; it must not complain of anything."""
    context = browser.new_context(base_url=site.url, **options)
    context.set_default_timeout(DEADLINE_S * 1000)
    page = context.new_page()
    complaints = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda sent: complaints.append(sent.url) if not sent.url.startswith((site.url, "data:")) else None
    )
    yield page
    context.close()
    # That a path is not there is what was asked for.
    assert [each for each in complaints if "404 (Not Found)" not in each] == []


def sign_in(page, site):
    """Show the token of an operator."""
    page.goto("/rules")
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_no_page_has_a_serious_fault_or_is_wider_than_the_screen(browser, site, axe, width, scheme):
    viewport = {"width": width, "height": 800}
    with tab(browser, site, viewport=viewport, color_scheme=scheme, bypass_csp=True) as page:
        sign_in(page, site)
        for path in site.paths:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            page.evaluate(axe)
            found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            serious = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in found
                if each["impact"] in {"serious", "critical"}
            ]
            assert serious == [], path


def test_without_scripts_every_page_is_whole_and_operators_can_act(browser, site):
    with tab(browser, site, java_script_enabled=False, reduced_motion="reduce") as page:
        for path in site.paths:
            page.goto(path)
            assert page.locator("h1").count() == 1
            assert page.locator("#live").is_hidden()
        page.goto("/rules")
        assert page.get_by_role("button", name="Pause").count() == 0
        sign_in(page, site)
        page.get_by_label("Pause submissions with").fill("tenant=acme")
        page.get_by_role("button", name="Pause").click()
        assert page.get_by_role("status").inner_text() == "It is paused."
        page.get_by_role("button", name="Resume tenant=acme").click()
        assert page.get_by_role("status").inner_text() == "It is resumed."
        page.goto("/dead")
        page.get_by_role("button", name=f"Requeue {site.dead}/0").click()
        assert page.get_by_role("status").inner_text() == "Dead chunks with new attempts: 1."
        page.goto(f"/submissions/{site.logs}")
        page.get_by_text("Cancel…").click()
        page.get_by_label("Reason").fill("no longer needed")
        page.get_by_role("button", name="Cancel it for good").click()
        assert "no longer needed" in page.locator("main").inner_text()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in").wait_for()


def test_by_keyboard_the_content_is_one_key_away_and_the_focus_is_seen(browser, site):
    with tab(browser, site) as page:
        page.goto("/submissions")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "state"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_what_is_shown_follows_the_queue_until_it_is_paused(browser, queue, site):
    with tab(browser, site) as page:
        page.goto("/rules")
        page.get_by_role("button", name="Live").wait_for()
        queue.ok("pause", "tenant=acme")
        page.get_by_text("tenant=acme").nth(1).wait_for()
        page.goto("/submissions")
        made = queue.submit_lines(1, "--title", "New one")
        page.get_by_text("New one").wait_for()
        page.get_by_role("button", name="Live").click()
        page.get_by_role("button", name="Paused").click()
        queue.ok("cancel", made)
        page.locator("tr", has_text="New one").get_by_text("cancelled").wait_for()


def test_page_says_that_it_is_not_live_when_the_gateway_has_gone(browser, queue):
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        site = Site(process.stdout.readline().decode().strip(), "", "1", "1")
        context = browser.new_context(base_url=site.url)
        page = context.new_page()
        page.goto("/")
        page.get_by_role("button", name="Live").wait_for(timeout=DEADLINE_S * 1000)
        process.terminate()
        wait_until(lambda: process.poll() == 0, DEADLINE_S, "it ends although a browser follows")
        page.get_by_role("button", name="Not live").wait_for(timeout=DEADLINE_S * 1000)
        context.close()


@contextmanager
def elsewhere(html):
    """The port of a server of another site that shows this."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # of the same site as the gateway, and of another one
def test_another_page_may_link_to_the_page_and_an_image_in_it_takes_no_record(browser, queue, host):
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        url = process.stdout.readline().decode().strip()
        httpx.post(f"{url}/record", json={"payload": "a"}, trust_env=False)
        html = f'<title>x</title><img src="{url}/record"><a href="{url}/submissions">the queue</a>'
        with elsewhere(html) as port, browser.new_context() as context:
            page = context.new_page()
            page.set_default_timeout(DEADLINE_S * 1000)
            page.goto(f"http://{host}:{port}/", wait_until="load")  # which is when the image has come, or has not
            page.get_by_role("link", name="the queue").click()
            page.get_by_role("heading", name="Submissions").wait_for()
        record = httpx.get(f"{url}/record", trust_env=False).json()
        assert (record["payload"], record["attempts"]) == ("a", 1)
