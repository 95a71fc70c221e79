"""The page in a real Chromium: from an empty model to a downloaded one, on a phone and on a desk, in the light and in the dark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_world import COLOURS, names, photo, running, teach

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
TOKEN = "a-long-and-secret-token"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium to test the page in a browser")
    driver = pytest.importorskip("playwright.sync_api", reason="no driver for Chromium here: pip install playwright")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", *CAMERA])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each colour."""
    folder = tmp_path_factory.mktemp("photos")
    for colour in COLOURS:
        (folder / colour).mkdir()
        for i in range(6):
            (folder / colour / f"{i}.png").write_bytes(photo(colour, i))
    return folder


class Visitor:
    """A page that is open, and everything that went wrong with it."""

    def __init__(self, browser: Any, client: httpx.Client, width: int, scheme: str = "light", address: str = "/"):
        self.own = str(client.base_url).rstrip("/")
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, accept_downloads=True)
        self.page, self.troubles, self.asked = self.context.new_page(), list[str](), list[str]()
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda one: self.asked.append(one.url))
        self.page.set_default_timeout(20_000)
        self.page.goto(self.own + address)

    def teach(self, name: str, files: list[Path]) -> None:
        self.page.get_by_label("Name of the class").fill(name)
        self.page.locator("label.drop[data-for=teach] input").set_input_files(files)
        self.page.locator("#waiting").get_by_text(name, exact=True).wait_for()

    def learn(self, words: str) -> None:
        self.page.locator("#learn").click()
        self.page.locator("#learned").get_by_text(f"Learned {words}").wait_for()

    def ask(self, file: Path) -> str:
        before = self.page.locator("#answers li").count()
        self.page.locator("label.drop[data-for=ask] input").set_input_files(file)
        self.page.locator("#answers li").nth(before).wait_for()
        return str(self.page.locator("#answers li .label").first.inner_text())

    def answer_dialog(self, button: str) -> None:
        self.page.locator("#question").get_by_role("button", name=button, exact=True).click()

    def check_width(self) -> None:
        """Nothing is wider than the window, nor than the card that it is in."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        outside = """[...document.querySelectorAll('.card')].flatMap(card => [...card.querySelectorAll('*:not(.thumbs *)')].filter(
            e => e.getBoundingClientRect().right > card.getBoundingClientRect().right)).map(e => e.outerHTML)"""
        assert self.page.evaluate(outside) == []

    def close(self) -> None:
        assert self.troubles == []
        assert {url for url in self.asked if not url.startswith((f"{self.own}/", f"blob:{self.own}/"))} == set()
        self.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), pytest.param(1280, "light", marks=pytest.mark.slow)])
def test_from_an_empty_model_to_a_downloaded_one(browser: Any, photos: Path, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "model.safetensors"
    with running(path) as client:
        visitor = Visitor(browser, client, width, scheme)
        page = visitor.page
        page.locator("#teach").wait_for()
        assert page.locator("#asking").is_hidden()
        for colour in ("red", "green"):
            visitor.teach(colour, sorted((photos / colour).iterdir()))
        page.locator(".folder input").set_input_files(photos)  # a class more than once, and one with a long name
        visitor.teach("a class with a name that is far too long for one line", sorted((photos / "blue").iterdir()))
        page.locator("#waiting li").nth(3).wait_for()
        visitor.check_width()
        for name in ("blue", "a class with"):
            page.get_by_role("button", name=f"Discard the photos of {name}").click()
        page.locator("#waiting li").nth(2).wait_for(state="detached")
        visitor.learn("green, red")
        assert names(client) == ["green", "red"]
        assert visitor.ask(photos / "red" / "0.png") == "red"
        visitor.teach("blue", sorted((photos / "blue").iterdir()))
        visitor.learn("blue")
        assert visitor.ask(photos / "blue" / "0.png") == "blue"
        page.get_by_role("button", name="Undo the last change").click()
        visitor.answer_dialog("Undo")
        page.get_by_text("The last change is undone").wait_for()
        assert names(client) == ["green", "red"]
        assert visitor.ask(photos / "blue" / "0.png") != "blue"
        page.get_by_role("button", name="Rename red").click()
        page.locator("#answer").fill("<b>rouge</b>")
        visitor.answer_dialog("Rename")
        page.locator("#calls").get_by_text("<b>rouge</b>", exact=True).wait_for()
        page.get_by_role("button", name="Remove green").click()
        visitor.answer_dialog("Remove")
        page.get_by_text("green is removed").wait_for()
        assert names(client) == ["<b>rouge</b>"]
        with page.expect_download() as download:
            page.get_by_role("button", name="Model", exact=True).click()
        assert Path(download.value.path()).read_bytes() == path.read_bytes()
        visitor.check_width()
        ink, paper = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
        assert (brightness[0] < brightness[1]) == (scheme == "light")
        visitor.close()


def test_a_folder_names_its_classes_and_a_photo_comes_from_the_camera(browser: Any, photos: Path, tmp_path: Path) -> None:
    with running(tmp_path / "model.safetensors") as client:
        visitor = Visitor(browser, client, 1280)
        page = visitor.page
        page.locator(".folder input").set_input_files(photos)
        page.locator("#waiting li").nth(2).wait_for()
        assert client.get("/classes").json()["waiting"] == dict.fromkeys(COLOURS, 6)
        page.get_by_role("button", name="Discard the photos of blue").click()
        page.locator("#waiting li").nth(2).wait_for(state="detached")
        page.get_by_label("Name of the class").fill("camera")
        page.locator("#teach").get_by_role("button", name="Camera").click()
        page.get_by_role("button", name="Take a photo").click()
        page.get_by_text("1 photo taken").wait_for()
        page.get_by_text("1 photo ready to learn").wait_for()
        page.get_by_role("button", name="Done").click()
        assert client.get("/classes").json()["waiting"] == {"red": 6, "green": 6, "camera": 1}
        for _ in range(200):
            if page.evaluate("document.getElementById('video').srcObject === null"):
                break
            page.wait_for_timeout(50)
        else:
            pytest.fail("the camera is still on")
        visitor.close()


def test_the_token_is_typed_or_comes_in_the_fragment_and_leaves_the_address(browser: Any, tmp_path: Path) -> None:
    with running(tmp_path / "model.safetensors", token=TOKEN) as client:
        typed = Visitor(browser, client, 360)
        typed.page.locator("#token").fill("wrong")
        typed.page.keyboard.press("Enter")
        typed.page.get_by_text("That token is not the server's").wait_for()
        typed.page.locator("#token").fill(TOKEN)
        typed.page.keyboard.press("Enter")
        typed.page.locator("#teach").wait_for()
        given = Visitor(browser, client, 360, address=f"/#token={TOKEN}")
        given.page.locator("#teach").wait_for()
        assert TOKEN not in given.page.url
        for visitor in (typed, given):
            assert not any(TOKEN in url for url in visitor.asked if "#" not in url)
            assert visitor.context.cookies() == []
        given.close()
        typed.troubles = [words for words in typed.troubles if "401" not in words]  # the browser notes refused requests itself
        typed.close()


def test_by_keyboard_alone_and_with_names_for_everything(browser: Any, tmp_path: Path) -> None:
    with running(tmp_path / "model.safetensors") as client:
        teach(client, "red", "green")
        visitor = Visitor(browser, client, 1280)
        page = visitor.page
        page.get_by_role("button", name="Remove green").wait_for()
        unnamed = """[...document.querySelectorAll('button, input:not([hidden]), meter, img, dialog, section')].filter(e => !(
            e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim() || e.alt !== undefined)).length"""
        assert page.evaluate(unnamed) == 0
        focused = []
        for _ in range(40):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.id || document.activeElement.tagName"))
            if focused[-1] == "Remove green":
                break
        assert {"name", "INPUT", "undo"} <= set(focused)
        page.keyboard.press("Enter")
        page.locator("#question[open]").wait_for()
        page.keyboard.press("Escape")
        page.locator("#question[open]").wait_for(state="detached")
        assert names(client) == ["green", "red"]
        page.keyboard.press("Enter")  # the focus is back where it was
        page.locator("#yes").wait_for()
        page.locator("#yes").press("Enter")
        page.get_by_text("green is removed").wait_for()
        assert names(client) == ["red"]
        visitor.close()


def test_the_api_page_and_a_server_that_only_answers(browser: Any, network: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(network, tmp_path / "network.safetensors"))
    with running(path, read_only=True) as client:
        docs = Visitor(browser, client, 360, address="/docs")
        docs.page.get_by_text("/classes/{name}/images").first.wait_for()
        assert docs.page.evaluate("document.documentElement.scrollWidth") <= 360
        docs.close()
        visitor = Visitor(browser, client, 360)
        visitor.page.get_by_text("dog").first.wait_for()
        assert visitor.page.locator("#teach").is_hidden()
        assert visitor.page.get_by_role("button", name="Rename").count() == 0
        with visitor.page.expect_download() as download:
            visitor.page.get_by_role("button", name="ONNX").click()
        assert Path(download.value.path()).stat().st_size > 0
        visitor.close()
