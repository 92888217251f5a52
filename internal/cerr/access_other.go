// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cerr

// accessible always returns true on this system.
func accessible(string) bool { return true }
