// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package program

import "io"

// IsTerminal reports whether what is written to w is shown on a terminal, which
// it cannot find out here.
func IsTerminal(io.Writer) bool { return false }
