// SPDX-License-Identifier: Apache-2.0

// Package fakelib replaces libibverbs and librdmacm by C libraries for tests,
// so that every call really goes through C. The functions of Library return the
// result and errno that the test has set. Provider is a libibverbs with a
// device that supports everything and does nothing; it records all calls, with
// the memory to which their arguments point.
package fakelib
