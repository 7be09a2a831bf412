# SPDX-License-Identifier: Apache-2.0
# Tests of the programs as processes, in Python.
set(GEMMD_TEST_PYTHON "" CACHE FILEPATH
  "A Python interpreter with the packages of tests/end_to_end/requirements.txt")
if(NOT GEMMD_TEST_PYTHON)
  message(STATUS "GEMMD_TEST_PYTHON is empty: no end-to-end tests")
endif()

# A browser that draws the load tester's page; without one, that test fails.
find_program(CHROMIUM chromium)
if(NOT CHROMIUM)
  message(WARNING "No chromium found: end_to_end.gemmload_page will fail")
  set(CHROMIUM "")
endif()

# Registers each test_<name>.py of this folder as <label>.<name>, except the names after EXCEPT.
# Names after PARTS, as <name>=<count>, would take too long as one test: they become
# <label>.<name>.0 and so on. ARGUMENTS are passed to each. A file with marks or checks for the
# timed or the exhaustive run is also registered for that run, as <label>.<name>.timed or
# <label>.<name>.exhaustive, with that label; a file whose `pytestmark` is one of the two has no
# tests for the default run. pytest exits with 5, not 0, if a file contains no test.
function(gemmd_add_python_tests label)
  cmake_parse_arguments(arg "" "" "EXCEPT;PARTS;ARGUMENTS" ${ARGN})
  if(NOT GEMMD_TEST_PYTHON)
    return()
  endif()
  set(sanitized "")
  if(GEMMD_SANITIZER MATCHES "address")
    set(sanitized --sanitized)
  endif()
  file(GLOB files RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS test_*.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  foreach(file ${files})
    string(REGEX REPLACE "^test_(.*)[.]py$" "\\1" name ${file})
    if(name IN_LIST arg_EXCEPT)
      continue()
    endif()
    set(command ${GEMMD_TEST_PYTHON} -B -m pytest -p no:cacheprovider
      --gemmd=$<TARGET_FILE:gemmd> --gemmctl=$<TARGET_FILE:gemmctl>
      --gemmload=$<TARGET_FILE:gemmload> --chromium=${CHROMIUM}
      --fake-worker=$<TARGET_FILE:gemmd-fake-worker>
      --lying-worker=$<TARGET_FILE:gemmd-lying-worker>
      --fake-nvml=$<TARGET_FILE:gemmd_fake_nvml> ${sanitized}
      ${arg_ARGUMENTS} ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    file(STRINGS ${file} only REGEX "^pytestmark = pytest[.]mark[.](timed|exhaustive)$")
    if(NOT only)
      set(parts "${arg_PARTS}")
      list(FILTER parts INCLUDE REGEX "^${name}=")
      if(parts)
        string(REGEX REPLACE "^.*=" "" count ${parts})
        math(EXPR last "${count} - 1")
        foreach(part RANGE ${last})
          add_test(NAME ${label}.${name}.${part} COMMAND ${command} --part=${part}/${count})
          set_tests_properties(${label}.${name}.${part} PROPERTIES
            LABELS ${label} TIMEOUT ${GEMMD_TEST_TIMEOUT})
        endforeach()
      else()
        add_test(NAME ${label}.${name} COMMAND ${command})
        set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT ${GEMMD_TEST_TIMEOUT})
      endif()
    endif()
    file(STRINGS ${file} has_timed REGEX "mark[.]timed|[^a-z_]timed[(]")
    if(has_timed AND NOT only MATCHES "exhaustive" AND NOT GEMMD_SANITIZER)
      add_test(NAME ${label}.${name}.timed COMMAND ${command} --timed --rows=${GEMMD_TIMED_ROWS})
      set_tests_properties(${label}.${name}.timed PROPERTIES LABELS timed RUN_SERIAL TRUE TIMEOUT 3600)
    endif()
    file(STRINGS ${file} has_exhaustive REGEX "mark[.]exhaustive")
    if(has_exhaustive)
      add_test(NAME ${label}.${name}.exhaustive COMMAND ${command} --exhaustive)
      set_tests_properties(${label}.${name}.exhaustive PROPERTIES LABELS exhaustive TIMEOUT 3600)
    endif()
  endforeach()
endfunction()
