// SPDX-License-Identifier: Apache-2.0

// Package program is what the programs under cmd have in common: flags as
// getopt reads them in C, the text that -h prints, interruption, and the exit
// status.
package program
