// SPDX-License-Identifier: Apache-2.0

// Package fakelib puts C libraries of the test's own in the place of
// libibverbs and librdmacm: every call really goes through C. Library is one
// whose functions give the result and errno that the test has set. Provider is
// a libibverbs with a device that supports everything and does nothing, which
// writes down all calls with what their arguments point to.
package fakelib
