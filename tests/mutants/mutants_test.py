#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs mutants.py on a project of three files whose test program behaves as gtest's do."""

import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutants  # noqa: E402

FILES = {
    "CMakeLists.txt": """
        cmake_minimum_required(VERSION 3.25)
        project(sums LANGUAGES CXX)
        set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
        add_library(sums STATIC sums/more.cc sums/sums.cc)
        target_include_directories(sums PUBLIC ${PROJECT_SOURCE_DIR})
        add_executable(sums_test sums/sums_test.cc)
        target_link_libraries(sums_test PRIVATE sums)
        """,
    "sums/sums.h": """
        #pragma once
        inline int One() { return 1; }
        int Three();
        """,
    "sums/sums.cc": """
        #include "sums/sums.h"
        int Three() { return One() + 2; }
        int Unused() { return 5; }
        """,
    "sums/more.cc": """
        #include "sums/sums.h"
        int Two() { return 2 * One(); }
        """,
    # Checks the filter that it gets.
    "sums/sums_test.cc": """
        #include <cstdio>
        #include <cstdlib>
        #include <cstring>
        #include "sums/sums.h"
        int main(int, char** argv) {
          const char* filter = strchr(argv[1], '=') + 1;
          bool holds = true;
          if (strcmp(filter, "one") == 0) holds = One() == 1;
          else if (strcmp(filter, "three") == 0) holds = Three() == 3;
          else if (strcmp(filter, "never") == 0) holds = false;
          else if (strcmp(filter, "or_abort") == 0) { if (Three() != 3) abort(); }
          else { puts("[  PASSED  ] 0 tests."); return 0; }
          puts(holds ? "[  PASSED  ] 1 test." : "[  FAILED  ] it");
          return holds ? 0 : 1;
        }
        """,
}


class MutantsTest(unittest.TestCase):
    joins_sources = "OFF"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        mutants.ROOT = pathlib.Path(cls.folder.name).resolve()
        for name, text in FILES.items():
            (mutants.ROOT / name).parent.mkdir(exist_ok=True)
            (mutants.ROOT / name).write_text(textwrap.dedent(text).lstrip())
        # The compiler has the same kind of launcher as in gemmd's own build.
        command = ["cmake", "-S", mutants.ROOT, "-B", mutants.ROOT / "build", "-G", "Ninja",
                   "-DCMAKE_CXX_COMPILER_LAUNCHER=cmake;-E;env;LAUNCHED=1",
                   f"-DCMAKE_UNITY_BUILD={cls.joins_sources}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        cls.build = mutants.Build(mutants.ROOT / "build")
        subprocess.run(["ninja", "-C", cls.build.folder, "sums_test"], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def is_found(self, old, new, tests, file="sums/sums.cc", target="sums_test"):
        mutant = mutants.Mutant("m", file, old, new, target, tests)
        return mutants.is_found(self.build, mutant, self.build.folder / "mutants")[0]

    def test_a_fault_that_a_test_sees_is_found(self):
        self.assertTrue(self.is_found("+ 2", "+ 3", "three"))

    def test_a_fault_that_no_test_sees_survives(self):
        self.assertFalse(self.is_found("return 5", "return 6", "three"))

    def test_a_fault_in_a_header_is_in_every_source_that_includes_it(self):
        self.assertTrue(self.is_found("return 1", "return 2", "one", "sums/sums.h"))
        self.assertTrue(self.is_found("return 1", "return 2", "three", "sums/sums.h"))

    def test_sources_and_programs_stay_as_they_are(self):
        self.assertTrue(self.is_found("+ 2", "+ 3", "three"))
        self.assertIn("+ 2", (mutants.ROOT / "sums/sums.cc").read_text())
        self.assertTrue(mutants.run_tests(self.build.folder / "bin/sums_test", "three", mutants.ROOT)[0])
        self.assertFalse((self.build.folder / "mutants").exists())

    def expect_error(self, message, *arguments, **named):
        with self.assertRaisesRegex(mutants.ListError, message):
            self.is_found(*arguments, **named)

    def test_entries_that_say_nothing_are_errors(self):
        self.expect_error("old text 0 times", "no such text", "", "three")
        self.expect_error("old text 2 times", "int", "long", "three")
        self.expect_error("no file other.cc", "a", "b", "three", "other.cc")
        self.expect_error("fails without the fault", "+ 2", "+ 3", "never")
        self.expect_error("no test ran", "+ 2", "+ 3", "none_of_them")
        self.expect_error("without a failed assertion", "+ 2", "+ 3", "or_abort")
        self.expect_error("does not build", "+ 2", "+", "three")
        self.expect_error("nothing in sums_test is made of CMakeLists.txt", "sums/sums_test.cc", "", "three",
                          "CMakeLists.txt")

    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "list.toml").write_text(text)
            return mutants.read_lists(pathlib.Path(folder))

    def test_lists_are_checked(self):
        entry = '[[mutant]]\nname="b"\nfile="f"\nold="x"\nnew="y"\ntarget="t"\nfilter="g"\n'
        other = entry.replace('"b"', '"a"')
        self.assertEqual([mutant.name for mutant in self.read(entry + other)], ["a", "b"])
        for text, message in ((entry + entry, "b is there twice"),
                              (entry + 'why="?"\n', "want texts named"),
                              (entry.replace('old="x"\n', ""), "want texts named"),
                              (entry.replace('"x"', "1"), "want texts named"),
                              (entry.replace('"x"', '"y"'), "the new text is the old one")):
            with self.assertRaisesRegex(mutants.ListError, message):
                self.read(text)

    def test_all_turns_together_take_each_mutant_once(self):
        names = list(range(19))
        taken = [name for turn in range(7, 7 + 4) for name in mutants.choose(names, turn, 5)]
        self.assertEqual(sorted(taken), names)
        self.assertEqual(mutants.choose(names, 3, 5), mutants.choose(names, 3 + 4, 5))
        self.assertLessEqual(max(len(mutants.choose(names, turn, 5)) for turn in range(4)), 5)


class JoinedSourcesTest(MutantsTest):
    """The same, with the library's sources compiled as one."""

    joins_sources = "ON"


if __name__ == "__main__":
    unittest.main()
