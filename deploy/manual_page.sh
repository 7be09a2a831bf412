#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints a manual page made from what a program and its commands print for --help.
# usage: manual_page.sh PROGRAM SECTION
set -eu

program=$1
section=$2

# The help of the program, then that of each command after a line with its name.
texts() {
  "$program" --help
  "$program" --help | awk '/^Subcommands:$/ { is_list = 1; next } /^ *$/ { is_list = 0 } is_list && /^  [a-z]/ { print $1 }' |
    while read -r command; do
      printf '@command %s\n' "$command"
      "$program" "$command" --help
    done
}

texts | awk -v name="$(basename "$program")" -v section="$section" -v version="$("$program" --version | sed -n '1s/^[^ ]* //p')" '
  # Escapes text so that troff prints it unchanged.
  function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return text ~ /^[.\x27]/ ? "\\&" text : text
  }
  function end_verbatim() {
    if (is_verbatim) print ".fi\n.RE"
    is_verbatim = 0
  }
  function heading(text) {
    end_verbatim()
    is_list = 0
    print (command == "" ? ".SH " : ".SS ") "\"" plain(text) "\""
  }
  BEGIN { before_usage = 1 }
  /^@command / {
    end_verbatim()
    if (command == "") print ".SH COMMANDS"
    command = $2
    print ".SS \"" name " " plain(command) "\""
    before_usage = 1
    is_list = 0
    next
  }
  NR == 1 {
    summary = $0
    sub(/^[^:]*: /, "", summary)
    sub(/\.$/, "", summary)
    print ".TH " toupper(name) " " section " \"\" \"" plain(name " " version) "\""
    print ".SH NAME\n" name " \\- " plain(summary)
  }
  /^Usage: / {
    if (command == "") print ".SH SYNOPSIS\n.B " plain(substr($0, 8)) "\n.SH DESCRIPTION\n" description
    else print ".B " plain(substr($0, 8))
    before_usage = 0
    next
  }
  before_usage {
    if (command == "") description = description plain($0) "\n"
    else print (NF ? plain($0) "\n.PP" : ".PP")
    next
  }
  /-h,--help/ { column = index($0, "Print this help") }
  # Leaves out the help of the program, which each command would repeat.
  command != "" && /^  (-h,--help|--help-all) / { next }
  command != "" && /^Options:$/ { is_list = 1; next }
  /^[^ ].*:$/ && !/^(Examples|Exit codes):$/ { heading(substr($0, 1, length($0) - 1)); is_list = 1; next }
  /^(Examples|Exit codes):$/ { heading(substr($0, 1, length($0) - 1)); print ".RS\n.nf"; is_verbatim = 1; next }
  !NF { end_verbatim(); if (!is_list) print ".PP"; next }
  /^[^ ]/ { end_verbatim(); is_list = 0; print plain($0); next }
  is_verbatim || !is_list { print plain(is_verbatim ? substr($0, 3) : $0); next }
  {
    entry = substr($0, 1, column - 1)
    text = substr($0, column)
    # A name too long for its column extends into the column of texts, which begin with a capital
    # letter, and its text is on the next line.
    if (entry ~ /[^ ]$/ || (entry ~ /[^ ]/ && text !~ /^[A-Z]/)) { entry = $0; text = "" }
    sub(/^ +/, "", entry)
    sub(/ +$/, "", entry)
    if (entry != "") print ".TP\n.B " plain(entry)
    if (text != "") print plain(text)
  }
  END { end_verbatim() }'
