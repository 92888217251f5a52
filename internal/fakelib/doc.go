// Package fakelib puts C libraries of the test's own in the place of
// libibverbs and librdmacm: every call really goes through C, and gives the
// result and errno that the test has set.
package fakelib
