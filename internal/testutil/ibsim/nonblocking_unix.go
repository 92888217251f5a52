// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ibsim

import (
	"os"
	"syscall"
)

// nonblocking returns a file for a descriptor. The file supports deadlines.
func nonblocking(fd int) *os.File {
	_ = syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "output")
}
