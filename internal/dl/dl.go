// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl

// #cgo linux LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <errno.h>
// #include <stdlib.h>
// #include <string.h>
//
// /* Copies dlerror's text, which belongs to the thread: before Go reads it, the
//  * goroutine may be on another one. The caller frees the copy. */
// static void *verbena_open(const char *name, char **error)
// {
//	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
//	*error = handle ? NULL : strdup(dlerror());
//	return handle;
// }
//
// /* Reports whether the library's errno differs from ours. */
// static int verbena_other_errno(void *handle)
// {
//	int *(*location)(void);
//
//	*(void **)&location = dlsym(handle, "__errno_location");
//	return location && location() != &errno;
// }
import "C"

import (
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Library is a C library, which is opened at the first Load and stays open.
type Library struct {
	Name    string                        // soname, such as libibverbs.so.1
	Debian  string                        // names of the packages that contain the library
	Fedora  string                        //
	Symbols []string                      // names of the functions to look up
	Since   map[string]Since              // versions that added functions, by function; for the functions that may be missing
	Apart   bool                          // whether the library has nothing to do with verbs, so that a device of the program does not replace it
	Set     func(i int, f unsafe.Pointer) // called with the address f of Symbols[i]

	once sync.Once
	err  error
}

// Since is the version of a library that added a function.
type Since struct {
	Release string // release of rdma-core
	Node    string // ELF version node; empty: the library does not export the function
}

// Load opens the library and calls Set with the address of each symbol that it
// has. If a device of the program was selected, Load uses the device's
// functions instead. Later calls return the result of the first.
func (l *Library) Load() error {
	l.once.Do(l.load)
	return l.err
}

// load does the work of Load.
func (l *Library) load() {
	if !l.Apart {
		find, err := devices.settle(l.Name)
		if err != nil {
			l.err = err
			return
		}
		if find != nil {
			l.take(find)
			return
		}
	}
	name := C.CString(l.Name)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	handle := C.verbena_open(name, &reason)
	if handle == nil {
		defer C.free(unsafe.Pointer(reason))
		l.err = cerr.NotLoaded(cerr.LibraryError{
			Library: l.Name, Debian: l.Debian, Fedora: l.Fedora, Reason: C.GoString(reason),
		})
		return
	}
	if C.verbena_other_errno(handle) != 0 {
		l.err = cerr.Static(l.Name)
		return
	}
	for i, symbol := range l.Symbols {
		s := C.CString(symbol)
		if f := C.dlsym(handle, s); f != nil {
			l.Set(i, f)
		}
		C.free(unsafe.Pointer(s))
	}
}

// take calls Set with the functions of a device.
func (l *Library) take(find Lookup) {
	for i, symbol := range l.Symbols {
		if f := find(symbol); f != nil {
			l.Set(i, f)
		}
	}
}

// Lacks returns the error that the library does not have the symbol.
func (l *Library) Lacks(symbol string) error {
	since := l.Since[symbol]
	return cerr.Lacks(cerr.SymbolError{Symbol: symbol, Library: l.Name, Release: since.Release, Node: since.Node})
}
