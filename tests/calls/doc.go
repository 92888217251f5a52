// SPDX-License-Identifier: Apache-2.0

// Package calls proves what Go makes of the results of C functions, for each
// way that they have of reporting errors. The calls go through C to libraries
// of internal/testutil/fakelib, which return what a test tells them to.
package calls
