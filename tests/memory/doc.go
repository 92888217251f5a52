// SPDX-License-Identifier: Apache-2.0

// Package memory proves what ibverbs makes of memory operations that Soft-RoCE
// lacks: the calls go through C to libraries of internal/testutil/fakelib.
package memory
