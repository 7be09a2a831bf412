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

# Registers this folder's test_<name>.py as <label>.<name>, for each name. pytest ends with 5, not 0,
# where a file holds no test.
function(gemmd_add_python_tests label)
  if(NOT GEMMD_TEST_PYTHON)
    return()
  endif()
  set(sanitized "")
  if(GEMMD_SANITIZER MATCHES "address")
    set(sanitized --sanitized)
  endif()
  foreach(name ${ARGN})
    add_test(NAME ${label}.${name}
      COMMAND ${GEMMD_TEST_PYTHON} -B -m pytest -p no:cacheprovider
        --gemmd=$<TARGET_FILE:gemmd> --gemmctl=$<TARGET_FILE:gemmctl>
        --gemmload=$<TARGET_FILE:gemmload> --chromium=${CHROMIUM}
        --fake-worker=$<TARGET_FILE:gemmd-fake-worker>
        --fake-nvml=$<TARGET_FILE:gemmd_fake_nvml> ${sanitized}
        ${CMAKE_CURRENT_SOURCE_DIR}/test_${name}.py)
    set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT 600)
  endforeach()
endfunction()
