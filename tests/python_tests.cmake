# SPDX-License-Identifier: Apache-2.0
# Tests of the programs as processes, in Python.
set(GEMMD_TEST_PYTHON "" CACHE FILEPATH
  "A Python interpreter with the packages of tests/end_to_end/requirements.txt")
if(NOT GEMMD_TEST_PYTHON)
  message(STATUS "GEMMD_TEST_PYTHON is empty: no end-to-end tests")
endif()

# A browser that draws the load tester's page; without one that test fails.
find_program(CHROMIUM chromium)
if(NOT CHROMIUM)
  message(WARNING "No chromium found: end_to_end.gemmload_page will fail")
  set(CHROMIUM "")
endif()

# Registers each test_<name>.py of this folder as <label>.<name>, except for the names after EXCEPT.
# What follows ARGUMENTS is given to each.
# pytest ends with 5, not 0, where a file holds no test.
function(gemmd_add_python_tests label)
  cmake_parse_arguments(arg "" "" "EXCEPT;ARGUMENTS" ${ARGN})
  if(NOT GEMMD_TEST_PYTHON)
    return()
  endif()
  set(sanitized "")
  if(GEMMD_SANITIZER MATCHES "address")
    set(sanitized --sanitized)
  endif()
  file(GLOB files RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS test_*.py)
  foreach(file ${files})
    string(REGEX REPLACE "^test_(.*)[.]py$" "\\1" name ${file})
    if(name IN_LIST arg_EXCEPT)
      continue()
    endif()
    add_test(NAME ${label}.${name}
      COMMAND ${GEMMD_TEST_PYTHON} -B -m pytest -p no:cacheprovider
        --gemmd=$<TARGET_FILE:gemmd> --gemmctl=$<TARGET_FILE:gemmctl>
        --gemmload=$<TARGET_FILE:gemmload> --chromium=${CHROMIUM}
        --fake-worker=$<TARGET_FILE:gemmd-fake-worker>
        --lying-worker=$<TARGET_FILE:gemmd-lying-worker>
        --fake-nvml=$<TARGET_FILE:gemmd_fake_nvml> ${sanitized}
        ${arg_ARGUMENTS} ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT 600)
  endforeach()
endfunction()
