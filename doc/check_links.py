#!/usr/bin/env python3
"""Every link, picture and anchor inside the built pages leads somewhere; `make doc` runs it.

python doc/check_links.py doc/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Pages of source code, and the search page, whose content scripts make.
LEFT_OUT = ("_modules", "_sources", "_static")


class Page(HTMLParser):
    """What a page offers as anchors, and where it leads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        link = attrs.get("href" if tag in ("a", "link") else "src")
        if link:
            self.links.append(link)


def main(folder):
    folder = Path(folder).resolve()
    paths = [
        p for p in folder.rglob("*.html") if not set(p.relative_to(folder).parts) & set(LEFT_OUT)
    ]
    pages = {path: Page(path) for path in paths}
    broken = [
        f"{path.relative_to(folder)}: {link}"
        for path, page in sorted(pages.items())
        for link in dict.fromkeys(page.links)
        if not leads_somewhere(path, link, pages)
    ]
    print("\n".join(broken) or f"{len(pages)} pages, no broken internal link")
    return len(broken)


def leads_somewhere(path, link, pages):
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
