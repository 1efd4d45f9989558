"""Puts the site's search into one script, as browsers let no page read a second file from a disk.

MkDocs's own starts a worker from one file, which imports lunr.js and fetches the index: over HTTP
that works, for a site that is opened from the file system each of the three is refused.
"""

import json
from pathlib import Path

_WORKER = 'new Worker(joinUrl(base_url, "search/worker.js"))'


def on_post_build(config) -> None:
    """Gives `search/main.js` its worker's source as text."""
    folder = Path(config.site_dir, "search")
    index = (folder / "search_index.json").read_text()
    source = "\n".join(
        [
            (folder / "lunr.js").read_text(),
            (folder / "worker.js").read_text(),
            # Of two functions of one name JavaScript takes the last.
            f"function init() {{ onJSONLoaded.call({{responseText: {json.dumps(index)}}}); }}",
            "importScripts = () => {};",
        ]
    )
    main = folder / "main.js"
    before, found, after = main.read_text().partition(_WORKER)
    if not found:
        raise ValueError(
            f"expected {_WORKER} in MkDocs's search/main.js; received a script without it. Look "
            "how this MkDocs starts its search, and change docs/hooks/search_in_one_file.py."
        )
    blob = f"new Blob([{json.dumps(source)}], {{type: 'text/javascript'}})"
    main.write_text(f"{before}new Worker(URL.createObjectURL({blob})){after}")
