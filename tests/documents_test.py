#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that files named in READMEs exist, that every folder is named, and that texts for
operators can be understood alone."""

import json
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Two pages. What was measured belongs to the README of a folder of reports, which may be longer.
MAX_README_BYTES = 12288
# READMEs that exceed it, each with its size. A size may only become smaller, and no line may be added.
LONG_READMES = {"deploy/README.md": 13994, "server/store/README.md": 14962}
MAX_LINE = 150
TOP_FOLDERS = ("client", "deploy", "kernels", "proto", "server", "tests")
SOURCES = re.compile(r"[\w-]+\.(cc|cu|cuh|h|proto|py|sh)")

# A text that begins like the second half of a sentence cannot be understood without another one
# above or beside it.
LEANING = re.compile(
    r"^(Of|The same|And|Or|But|That|Which|Also|Other|Others|As|By)\b", re.IGNORECASE
)
# Additions that CONTRIBUTING.md must describe, each with the maximum number of paths that it names,
# and of those that are no tests: what takes more files is a list that stands in several places.
ADDITIONS = {
    "A kernel row": (4, 3),
    "An element type": (20, 18),
    "An epilogue": (21, 18),
    "An RPC": (15, 8),
    "A metric": (6, 4),
    "An option of the daemon": (3, 2),
}
# Folders that running and building leave beside the sources.
LEFT_BEHIND = {"__pycache__", "build", "gemmd.egg-info"}


def documents(root):
    """The top documents and those of every folder."""
    folders = [path for top in TOP_FOLDERS for path in (root / top).rglob("*.md")]
    made = [path for path in folders if LEFT_BEHIND & set(path.relative_to(root).parts)]
    return sorted({*root.glob("*.md"), *folders} - {*made})


def long_readmes(root, known):
    """READMEs that exceed the bound or their size in `known`, and those that are in `known` with too large a size."""
    sizes = {
        str(path.relative_to(root)): path.stat().st_size
        for path in documents(root)
        if path.name == "README.md" and path.parent.name != "reports"
    }
    exceeding = {name for name, size in sizes.items() if size > known.get(name, MAX_README_BYTES)}
    return sorted(exceeding | {name for name, size in known.items() if sizes.get(name, 0) < size})


def long_lines(text):
    """Lines that are too long, except rows of tables, whose cells cannot be wrapped, and generated text."""
    written = re.sub(r"^<!-- (\w+): begin, written by .*?^<!-- \1: end", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in written.splitlines() if len(line) > MAX_LINE and not line.startswith("|")]


def anchors(text):
    """The names by which a link can point to a heading."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(root, path):
    """Whether the path exists. If NAME stands for a part of it, one such file must exist."""
    if "NAME" in path or "*" in path:
        return any(root.glob(path.replace("NAME", "*")))
    return (root / path).exists()


def named_paths(text):
    """The words in back-ticks or in examples."""
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    for word in " ".join(inline + blocks).split():
        yield word.strip("(),;").removesuffix("/")


def script_paths(text):
    """The sources in a shell script, as paths from the top, with their braces expanded."""
    tops = "|".join(TOP_FOLDERS)
    for word in re.findall(rf"(?<![\w$./}}\"-])(?:{tops})/[\w/{{}},.-]+", text):
        path, _, suffix = word.rpartition(".")
        if suffix in ("cc", "cu", "h", "proto", "py", "sh"):
            yield from expanded(f"{path}.{suffix}")


def expanded(path):
    """The paths that the shell makes of one with braces."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if not braces:
        return [path]
    parts = braces.group(1).split(",")
    return [
        whole
        for part in parts
        for whole in expanded(path[: braces.start()] + part + path[braces.end() :])
    ]


def additions(text):
    """The sections of CONTRIBUTING.md by title, each with the set of paths that it names."""
    sections = re.findall(r"^### (.+?)\n(.*?)(?=^###? |\Z)", text, re.MULTILINE | re.DOTALL)
    return {title: {word for word in named_paths(body) if "/" in word} for title, body in sections}


def is_product(path):
    return not path.startswith("tests/") and not path.endswith("CMakeLists.txt")


def bad_additions(text):
    """Titles of ADDITIONS without a section whose paths are few and all checked by missing_paths."""
    found = additions(text)
    return [
        title
        for title, (max_paths, max_product) in ADDITIONS.items()
        if not 1 <= len(found.get(title, ())) <= max_paths
        or sum(map(is_product, found[title])) > max_product
        or any(path.split("/")[0] not in TOP_FOLDERS for path in found[title])
    ]


def file_names(root):
    return {path.name for top in TOP_FOLDERS for path in (root / top).rglob("*.*")}


def missing_paths(root, document):
    """Paths named in a document that exist neither from the root nor from the document's folder."""
    text = document.read_text()
    names = file_names(root)
    missing = []
    for word in named_paths(text):
        begins_in = word.split("/")[0]
        if "/" in word and begins_in in TOP_FOLDERS:
            good = is_there(root, word)
        elif "/" in word and begins_in and (document.parent / begins_in).is_dir():
            good = is_there(document.parent, word) or begins_in == "build"
        elif SOURCES.fullmatch(word):
            good = word in names or is_there(document.parent, word)
        else:
            continue
        if not good:
            missing.append(word)
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", text):
        if link.startswith("https:"):
            continue
        target = document.parent / link if link else document
        if not target.exists():
            missing.append(link)
        elif anchor and anchor not in anchors(target.read_text()):
            missing.append(f"{link}#{anchor}")
    return missing


def folders_with_files(root):
    """Folders that hold files of the repository; in deploy, only those directly below."""
    found = set()
    for top in TOP_FOLDERS:
        for path in (root / top).rglob("*"):
            if path.is_file() and not LEFT_BEHIND & set(path.relative_to(root).parts):
                found.add(path.parent.relative_to(root))
    return {
        pathlib.Path(*folder.parts[:2]) if folder.parts[0] == "deploy" else folder for folder in found
    }


def unnamed_folders(root):
    """Folders that have no README and are not named in one above them. Folders of tests that mirror
    the tree need no name."""
    named = {document.parent.relative_to(root) for document in documents(root)}
    for document in documents(root):
        parent = document.parent.relative_to(root)
        for word in named_paths(document.read_text()):
            named |= {pathlib.Path(word), parent / word, (parent / word).parent}
    return sorted(
        str(folder)
        for folder in folders_with_files(root) - named - {pathlib.Path("proto")}
        if folder.parts[0] != "tests" or not (root / pathlib.Path(*folder.parts[1:])).is_dir()
    )


def operator_texts(root):
    """The texts of alerts and of the dashboard, each with its place."""
    rules = root / "deploy/prometheus/rules.yaml"
    for key, text in re.findall(r"^ +(summary|description): (.+)$", rules.read_text(), re.MULTILINE):
        yield f"{rules.name}: {key}", text.strip('"')
    dashboard = root / "deploy/grafana/dashboards/gemmd.json"
    for panel in json.loads(dashboard.read_text())["panels"]:
        yield f"panel {panel['title']}: title", panel["title"]
        if panel.get("description"):
            yield f"panel {panel['title']}: description", panel["description"]


class DocumentsTest(unittest.TestCase):
    maxDiff = None

    def test_readmes_are_short(self):
        self.assertEqual(long_readmes(ROOT, LONG_READMES), [])

    def test_lines_are_short(self):
        for document in documents(ROOT):
            if document.parent.name != "reports":
                with self.subTest(document=str(document.relative_to(ROOT))):
                    self.assertEqual(long_lines(document.read_text()), [])

    def test_what_documents_name_is_there(self):
        for document in documents(ROOT):
            with self.subTest(document=str(document.relative_to(ROOT))):
                self.assertEqual(missing_paths(ROOT, document), [])

    def test_what_scripts_name_is_there(self):
        scripts = [
            path
            for top in TOP_FOLDERS
            for path in (ROOT / top).rglob("*.sh")
            if not path.name.endswith("_test.sh")  # They make files of their own.
        ]
        paths = {path: list(script_paths(path.read_text())) for path in scripts}
        self.assertGreater(sum(len(found) for found in paths.values()), 20)
        for script, found in paths.items():
            with self.subTest(script=str(script.relative_to(ROOT))):
                self.assertEqual([path for path in found if not is_there(ROOT, path)], [])

    def test_every_folder_is_named(self):
        self.assertEqual(unnamed_folders(ROOT), [])

    def test_contributing_tells_how_to_add_things(self):
        self.assertEqual(bad_additions((ROOT / "CONTRIBUTING.md").read_text()), [])

    def test_what_operators_read_stands_alone(self):
        texts = list(operator_texts(ROOT))
        self.assertGreater(len(texts), 80)
        self.assertEqual([(where, text) for where, text in texts if LEANING.search(text)], [])


class PlantedFaultsTest(unittest.TestCase):
    """Each check finds faults planted in a small repository."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("server/main.cc", "// Reads options.\n")
        self.write("server/wire/convert_a.cc", "int a;  // A count.\n")
        self.write("server/README.md", "`main.cc`, [wire](wire/convert_a.cc), `wire`")
        self.document = self.root / "README.md"

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def missing(self, text):
        self.document.write_text(text)
        return missing_paths(self.root, self.document)

    def test_paths(self):
        self.assertEqual(self.missing("`server/main.cc` `server/wire/convert_NAME.cc` `main.cc`"), [])
        self.assertEqual(self.missing("`/metrics` `a.npy` `build/bin/gemmd` `k.how`"), [])
        self.assertEqual(self.missing("`server/mian.cc`"), ["server/mian.cc"])
        self.assertEqual(self.missing("`server/wire/make_NAME.cc`"), ["server/wire/make_NAME.cc"])
        self.assertEqual(self.missing("see `mian.cc`"), ["mian.cc"])
        self.assertEqual(self.missing("[there](server/gone.md)"), ["server/gone.md"])
        self.assertEqual(self.missing("```\nserver/gone.sh --all\n```"), ["server/gone.sh"])
        self.write("server/README.md", "`wire/gone.cc`")
        self.assertEqual(missing_paths(self.root, self.root / "server/README.md"), ["wire/gone.cc"])

    def test_headings(self):
        self.write("server/README.md", "# Daemon\n\n## Threads of gRPC's own\n")
        self.assertEqual(self.missing("[there](server/README.md#threads-of-grpcs-own)"), [])
        self.assertEqual(self.missing("[there](server/README.md#threads)"), ["server/README.md#threads"])
        self.assertEqual(self.missing("## Here\n[h](#here) [t](#there) [w](https://a.org/#x)"), ["#there"])

    def test_sizes(self):
        self.document.write_text("x" * MAX_README_BYTES)
        self.write("kernels/bench/reports/README.md", "x" * 99999)
        self.assertEqual(long_readmes(self.root, {}), [])
        self.document.write_text("x" * (MAX_README_BYTES + 1))
        self.assertEqual(long_readmes(self.root, {}), ["README.md"])
        self.assertEqual(long_readmes(self.root, {"README.md": MAX_README_BYTES + 1}), [])
        # The list follows what became shorter.
        self.assertEqual(long_readmes(self.root, {"README.md": MAX_README_BYTES + 2}), ["README.md"])
        self.assertEqual(long_readmes(self.root, {"README.md": MAX_README_BYTES + 1, "gone": 1}), ["gone"])

    def test_lines(self):
        long = "x" * (MAX_LINE + 1)
        self.assertEqual(long_lines(f"{long[1:]}\n| {long} |\n"), [])
        self.assertEqual(long_lines(f"a\n{long}\n"), [long])
        made = f"<!-- t: begin, written by tests/readme_tables.py -->\n{long}\n<!-- t: end -->\n"
        self.assertEqual(long_lines(made), [])
        self.assertEqual(long_lines(made + long), [long])

    def test_paths_in_scripts(self):
        found = list(script_paths("run server/{a,wire/b}.cc tests/c.sh $x/tests/d.sh tests/e"))
        self.assertEqual(found, ["server/a.cc", "server/wire/b.cc", "tests/c.sh"])

    def test_folders(self):
        self.document.write_text("words")
        self.assertEqual(unnamed_folders(self.root), [])
        self.write("server/README.md", "`main.cc`")
        self.assertEqual(unnamed_folders(self.root), ["server/wire"])
        self.document.write_text("`server/wire`")
        self.assertEqual(unnamed_folders(self.root), [])
        self.write("server/new/a.cc", "")
        self.write("tests/server/new/a_test.cc", "")  # Mirrors the tree.
        self.write("tests/other/a_test.cc", "")
        self.assertEqual(unnamed_folders(self.root), ["server/new", "tests/other"])

    def test_additions(self):
        good = "".join(f"### {title}\n\n1. `server/main.cc`: it.\n\n" for title in ADDITIONS)
        self.assertEqual(bad_additions(good), [])
        self.assertEqual(bad_additions(good.replace("### An RPC", "### A call")), ["An RPC"])
        unnamed = good.replace("### A metric\n\n1. `server/main.cc`", "### A metric\n\n1. Somewhere")
        self.assertEqual(bad_additions(unnamed), ["A metric"])
        unchecked = good.replace("### A metric\n\n1. `server/", "### A metric\n\n1. `metrics/")
        self.assertEqual(bad_additions(unchecked), ["A metric"])
        many = "### A kernel row\n\n" + " ".join(f"`kernels/{i}.h`" for i in range(5))
        self.assertEqual(bad_additions(good.replace("### A kernel row", many)), ["A kernel row"])
        calls = good.replace("### An RPC", "### An RPC\n\n" + " ".join(f"`server/{i}.cc`" for i in range(8)))
        self.assertEqual(bad_additions(calls), ["An RPC"])
        tested = good.replace("### An RPC", "### An RPC\n\n" + " ".join(f"`tests/{i}.cc`" for i in range(8)))
        self.assertEqual(bad_additions(tested), [])

    def test_leaning_texts(self):
        for text in (
            "Of which they waited for the device",
            "The same for each stage",
            "And the most that it may take",
        ):
            self.assertRegex(text, LEANING)
        self.assertNotRegex("Products that wait for the device", LEANING)


if __name__ == "__main__":
    unittest.main()
