// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package ibsim

import "os"

// nonblocking returns a file for a descriptor.
func nonblocking(fd int) *os.File { return os.NewFile(uintptr(fd), "output") }
