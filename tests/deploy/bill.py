# SPDX-License-Identifier: Apache-2.0
"""A bill of materials, parsed with SPDX's own tools and compared with the files of its tree."""

import hashlib
import re

from spdx_tools.spdx.model import RelationshipType
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from image import run

PLACE = "share/doc/gemmd/sbom.spdx.json"
# Libraries of the target machine: glibc, and the driver of its GPUs.
OF_THE_MACHINE = re.compile(r"(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util|cuda))\.so.*")


class Bill:
    """A document, parsed and validated."""

    def __init__(self, tree):
        self.document = parse_file(str(tree / PLACE))
        assert validate_full_spdx_document(self.document) == []
        self.packages = {package.spdx_id: package for package in self.document.packages}
        self.files = {file.name.removeprefix("./"): file for file in self.document.files}

    def related(self, kind):
        return [
            (relation.spdx_element_id, relation.related_spdx_element_id)
            for relation in self.document.relationships
            if relation.relationship_type == kind
        ]

    def package_of(self, path):
        """The package from which a file comes."""
        packages = dict(self.related(RelationshipType.EXPANDED_FROM_ARCHIVE))
        return self.packages[packages[self.files[path].spdx_id]]


def files_of(tree):
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and not path.is_symlink()}


def needed(path):
    """The names of the libraries that a program or library needs."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", path))


def check(tree):
    """Compares the whole document with the files of its tree."""
    bill = Bill(tree)
    assert bill.files.keys() == files_of(tree) - {PLACE}
    for path, file in bill.files.items():
        content = (tree / path).read_bytes()
        sums = {checksum.algorithm.name: checksum.value for checksum in file.checksums}
        assert sums == {
            "SHA1": hashlib.sha1(content).hexdigest(),
            "SHA256": hashlib.sha256(content).hexdigest(),
        }, path
    asked = {name for path in [*tree.glob("bin/*"), *tree.glob("lib/gemmd/*.so*")] for name in needed(path)}
    asked = {name for name in asked if not OF_THE_MACHINE.fullmatch(name)}
    assert len(asked) > 20
    loaded = {(tree / "lib/gemmd" / name).resolve(strict=True) for name in asked}
    bundled = {path.resolve() for path in (tree / "lib/gemmd").iterdir()}
    assert loaded <= bundled
    found = {bill.package_of(str(path.relative_to(tree.resolve()))).spdx_id for path in bundled}
    inside = {package for _, package in bill.related(RelationshipType.STATIC_LINK)}
    assert found | inside == bill.packages.keys() - {"SPDXRef-gemmd"}
    depends = bill.related(RelationshipType.DEPENDS_ON)
    assert {package for _, package in depends} == found
    return bill
