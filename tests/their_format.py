"""The format of another package, as docs/formats.md shows how to write one."""

import re

from checkout import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "formats.md").read_text("utf-8")
exec(re.findall(r"^```python\n(.*?)^```", _PAGE[_PAGE.index("## A format of your own") :], re.M | re.S)[0])
