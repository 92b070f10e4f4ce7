"""Open a report in headless Chromium: no console errors, every plot drawn, nothing wider than the screen.

    python tools/check_report.py runs/demo/report.html [--shots DIR]

Exit code 0 when all is well, 1 with one line per problem, 2 when there is no Chromium or no file.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = {1400: 1000, 390: 844}  # a desk and a phone, pixels
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=60000",
)
# Runs inside the page after its own script and leaves its findings in an attribute that the dumped page shows.
PROBE = """
<script>
(() => {
  const errors = [];
  addEventListener("error", (e) => errors.push(String(e.message)));
  addEventListener("unhandledrejection", (e) => errors.push(String(e.reason)));
  const original = console.error;
  console.error = (...a) => { errors.push(a.join(" ")); original(...a); };
  window.__errors = errors;
})();
</script>
"""
REPORT = """
<script>
const waiting = setInterval(() => {
  if (!document.documentElement.dataset.drawn) return;
  clearInterval(waiting);
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = (p) => p.querySelector(".main-svg") && p.querySelector(".trace, .bars, .heatmaplayer image");
  const asked = performance.getEntriesByType("resource").map((r) => r.name);
  const found = { errors: window.__errors, plots: plots.length, empty: plots.filter((p) => !drawn(p)).map((p) => p.id),
    nan: document.querySelector("main").innerText.match(/\\b(nan|NaN|undefined)\\b/g) || [],
    width: document.documentElement.scrollWidth, outside: asked.filter((n) => /^(http|ws)s?:/.test(n)) };
  document.documentElement.dataset.check = JSON.stringify(found);
}, 250);
</script>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--shots", type=Path, help="directory for screenshots")
    options = parser.parse_args()
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if browser is None or not options.report.is_file():
        missing = (
            "no chromium, chromium-browser or google-chrome on PATH" if browser is None else f"no file {options.report}"
        )
        print(f"cannot check the report: {missing}", file=sys.stderr)
        return 2
    problems = [
        f"{width} px, {'dark' if dark else 'light'}: {problem}"
        for width in WIDTHS
        for dark in (False, True)
        for problem in check(browser, options.report, width, dark=dark, shots=options.shots)
    ]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{options.report}: drawn at {' and '.join(map(str, WIDTHS))} px, light and dark, without an error")
    return 1 if problems else 0


def check(browser: str, report: Path, width: int, *, dark: bool, shots: Path | None) -> list[str]:
    """Problems at one width and theme."""
    page = report.read_text(encoding="utf-8").replace("<head>", "<head>" + PROBE, 1)
    page = page.replace("</body>", REPORT + "</body>", 1) if page.count("</body>") == 1 else _append(page)
    with tempfile.TemporaryDirectory() as folder:
        # A headless window cannot be narrower than 500 px: the page is shown in a frame of the asked width instead.
        inner, outer = Path(folder, "inner.html"), Path(folder, "outer.html")
        inner.write_text(page, encoding="utf-8")
        outer.write_text(_frame(width), encoding="utf-8")
        profile = Path(folder, "profile")
        scheme = (
            ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
            if dark
            else ["--blink-settings=preferredColorScheme=1"]
        )
        base = [browser, *FLAGS, *scheme, f"--user-data-dir={profile}", "--allow-file-access-from-files"]
        dumped = _run([*base, "--dump-dom", f"--window-size={max(width, 500)},1000", outer.as_uri()])
        problems = _problems(dumped, width)
        if shots is not None:
            shots.mkdir(parents=True, exist_ok=True)
            name = shots / f"report_{width}_{'dark' if dark else 'light'}.png"
            _run([*base, f"--screenshot={name}", f"--window-size={max(width, 500)},{_height(dumped)}", outer.as_uri()])
    return problems


def _frame(width: int) -> str:
    copy = "const d = f.contentDocument.documentElement; if (!d || !d.dataset.check) return; clearInterval(i);"
    copy += "document.documentElement.dataset.check = d.dataset.check;"
    grow = "f.style.height = d.scrollHeight + 'px'; document.documentElement.dataset.height = d.scrollHeight;"
    return (
        "<!doctype html><style>html{overflow:hidden}body{margin:0}iframe{border:0;height:1000px}</style>"
        f"<iframe id=f style=width:{width}px src=inner.html></iframe><script>const f = document.getElementById('f');"
        f"const i = setInterval(() => {{ {copy} {grow} }}, 250);</script>"
    )


def _append(page: str) -> str:
    head, _, tail = page.rpartition("</body>")  # plotly's own source may hold the same words
    return head + REPORT + "</body>" + tail


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def _height(dumped: subprocess.CompletedProcess[str]) -> int:
    found = re.search(r'data-height="(\d+)"', dumped.stdout)
    return int(found.group(1)) if found else 2000


def _problems(dumped: subprocess.CompletedProcess[str], width: int) -> list[str]:
    match = re.search(r'data-check="([^"]*)"', dumped.stdout)
    if match is None or not match.group(1):
        return [f"the page did not finish (exit code {dumped.returncode}): {dumped.stderr.strip()[-200:]}"]
    found = json.loads(match.group(1).replace("&quot;", '"').replace("&amp;", "&"))
    problems = [f"console error: {error}" for error in found["errors"]]
    problems += [f"console: {line}" for line in dumped.stderr.splitlines() if ":CONSOLE" in line and "ERROR" in line]
    problems += [f"plot {key} is empty" for key in found["empty"]]
    problems += [f"the page says {word!r}" for word in found["nan"]]
    problems += [f"asked the network for {name}" for name in found["outside"]]
    if not found["plots"]:
        problems.append("no plot at all")
    if found["width"] > width:
        problems.append(f"the page is {found['width']} px wide on a screen of {width} px")
    return problems


if __name__ == "__main__":
    sys.exit(main())
