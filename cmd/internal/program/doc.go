// SPDX-License-Identifier: Apache-2.0

// Package program holds what the programs under cmd have in common: flags in
// the syntax of C's getopt, the text of -h, handling of signals, and the exit
// status.
package program
