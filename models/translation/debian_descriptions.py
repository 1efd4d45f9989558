"""English and German descriptions of Debian's packages: 38,000 pairs of titles and sentences.

Translated by the Debian Description Translation Project, distributed as apt's own lists. They are
full of near-duplicates ("This package contains the ..."): good for comparing training methods, not
for claims about translation.
"""

import hashlib
import pathlib
import re

import package_files

FOLDER = "debian-descriptions"
TEST_SHARE = 20  # one of so many sentences is held out


def load(data_dir: pathlib.Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns (training pairs, test pairs) of (English, German), in an order of their own.

    No English sentence is in both. The lists are fetched by apt-get into `data_dir`, once (60 MB).

    Raises:
        package_files.PackageUnavailableError: they are neither here nor to be had.
    """
    folder = data_dir / FOLDER
    if not folder.is_dir():
        package_files.fetch_descriptions(["en", "de"], folder)
    german = _read(folder / "Translation-de")
    pairs = _aligned(_read(folder / "Translation-en", among=german.keys()), german)
    digests = {pair: hashlib.sha256(pair[0].encode()).digest() for pair in pairs}
    test = [pair for pair in pairs if digests[pair][0] % TEST_SHARE == 0]
    train = [pair for pair in pairs if digests[pair][0] % TEST_SHARE]
    # By digest: any beginning of the list is a fair sample.
    return sorted(train, key=digests.get), sorted(test, key=digests.get)


def _read(path: pathlib.Path, among=None) -> dict[str, tuple[str, list[str]]]:
    """Maps the digest of an English description to (title, paragraphs).

    A record has the lines `Package`, `Description-md5` and `Description-CODE` with the title, then
    the indented lines of the body, paragraphs between lines of a single dot.
    """
    descriptions = {}
    for record in path.read_text(encoding="utf-8").split("\n\n"):
        if not record.strip():
            continue
        _, digest, title, *body = record.strip().split("\n", 3)
        digest = digest.removeprefix("Description-md5: ")
        if among is None or digest in among:
            paragraphs = re.split(r"\n \.\n", "\n" + "".join(body))
            descriptions[digest] = (
                title.split(": ", 1)[1],
                [" ".join(p.split()) for p in paragraphs if p.strip()],
            )
    return descriptions


def _aligned(english, german) -> list[tuple[str, str]]:
    """Titles, and the sentences of paragraphs that have as many of them in both languages."""
    between_sentences = re.compile(r'(?<=[.!?]) (?=[A-ZÄÖÜ0-9"])')
    pairs = {}
    for digest in english.keys() & german.keys():
        (title, paragraphs), (german_title, german_paragraphs) = english[digest], german[digest]
        pairs[title, german_title] = None
        if len(paragraphs) != len(german_paragraphs):
            continue
        for paragraph, german_paragraph in zip(paragraphs, german_paragraphs, strict=True):
            sentences = between_sentences.split(paragraph)
            german_sentences = between_sentences.split(german_paragraph)
            if len(sentences) == len(german_sentences):
                pairs |= dict.fromkeys(zip(sentences, german_sentences, strict=True))
    return sorted(pair for pair in pairs if pair[0] != pair[1])
