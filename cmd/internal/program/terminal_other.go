// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package program

import "io"

// IsTerminal reports whether w writes to a terminal. On this system it does not
// know, and returns false.
func IsTerminal(io.Writer) bool { return false }
