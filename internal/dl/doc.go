// Package dl opens a C library at run time and finds its functions, so that a
// program which links the bindings starts on a machine without the library.
package dl
