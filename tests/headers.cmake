# SPDX-License-Identifier: Apache-2.0
#
# The target `headers` checks that each header of a library compiles with nothing included before
# it. If a header's own source includes it first, compiling that source alone shows this
# (tests/run.sh clang); the others are compiled here, without generating code.

# Sets `result` to whether one of the `sources` has the same name as `header` and includes it first.
function(gemmd_is_included_first header sources result)
  set(${result} FALSE PARENT_SCOPE)
  cmake_path(REPLACE_EXTENSION header LAST_ONLY .cc OUTPUT_VARIABLE source)
  if(NOT source IN_LIST sources)
    return()
  endif()
  file(STRINGS ${source} first REGEX "^ *# *include" LIMIT_COUNT 1)
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(first STREQUAL "#include \"${header}\"")
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# Appends the checks of the headers of `target` to the property GEMMD_HEADER_STAMPS.
function(gemmd_check_headers_of target)
  get_target_property(headers ${target} HEADER_SET)
  if(NOT headers)
    return()
  endif()
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(target_sources ${target} SOURCES)
  get_target_property(precompiled ${target} PRECOMPILE_HEADERS)
  set(sources "")
  foreach(source ${target_sources})
    if(NOT precompiled AND NOT source MATCHES "^[$]<")
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
      list(APPEND sources ${source})
    endif()
  endforeach()
  set(include_directories
    "$<REMOVE_DUPLICATES:$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>>")
  set(definitions "$<REMOVE_DUPLICATES:$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>>")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  foreach(header ${headers})
    cmake_path(ABSOLUTE_PATH header BASE_DIRECTORY ${folder} NORMALIZE)
    gemmd_is_included_first(${header} "${sources}" shown)
    if(shown)
      continue()
    endif()
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    set(stamp ${PROJECT_BINARY_DIR}/headers/${name}.stamp)
    cmake_path(GET stamp PARENT_PATH stamp_folder)
    file(MAKE_DIRECTORY ${stamp_folder})
    # Without warnings: an unused variable or function in a header alone is no fault.
    add_custom_command(OUTPUT ${stamp}
      COMMAND ${CMAKE_CXX_COMPILER} ${flags} ${CMAKE_CXX20_STANDARD_COMPILE_OPTION} -fPIC -w -fsyntax-only
        "$<$<BOOL:${include_directories}>:-I$<JOIN:${include_directories},;-I>>"
        "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},;-D>>"
        -MD -MF ${stamp}.d -MT ${stamp} -include ${header} -x c++ /dev/null
      COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
      DEPENDS ${header}
      DEPFILE ${stamp}.d
      COMMENT "Compiling ${name} alone"
      COMMAND_EXPAND_LISTS
      VERBATIM)
    set_property(GLOBAL APPEND PROPERTY GEMMD_HEADER_STAMPS ${stamp})
  endforeach()
endfunction()

# Does so for every target of `folder` and of its subfolders.
function(gemmd_check_headers_in folder)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    gemmd_check_headers_of(${target})
  endforeach()
  get_directory_property(subfolders DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(subfolder ${subfolders})
    gemmd_check_headers_in(${subfolder})
  endforeach()
endfunction()

gemmd_check_headers_in(${PROJECT_SOURCE_DIR})
get_property(stamps GLOBAL PROPERTY GEMMD_HEADER_STAMPS)
add_custom_target(headers DEPENDS ${stamps})
# The generated headers, which many headers include.
add_dependencies(headers gemmd_proto)
