"""The picture of README: `python docs/screenshot.py runs/demo-1/afaf/report.html docs/images/report.png`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

page_file, picture = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1160, "height": 1230}, color_scheme="light")
    page.goto(page_file.as_uri())
    page.screenshot(path=picture)
    browser.close()
