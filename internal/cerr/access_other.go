// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cerr

// accessible reports whether this process may read and write a file.
func accessible(string) bool { return true }
