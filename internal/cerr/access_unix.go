// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cerr

import "syscall"

// accessible reports whether this process may read and write a file.
func accessible(path string) bool { return syscall.Access(path, 6) == nil }
