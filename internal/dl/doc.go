// Package dl opens a C library at run time and looks up its functions. A
// program that uses the bindings therefore also starts on a machine without the
// library.
package dl
