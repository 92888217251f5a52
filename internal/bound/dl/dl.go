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

	"github.com/verbena-go/verbena/internal/bound/cerr"
)

// Library is a C library, which is opened at the first Load and stays open.
type Library struct {
	Name    string                        // soname, such as libnuma.so.1
	Debian  string                        // names of the packages that contain the library
	Fedora  string                        //
	Symbols []string                      // names of the functions to look up
	Set     func(i int, f unsafe.Pointer) // called with the address f of Symbols[i]

	once sync.Once
	err  error
}

// Load opens the library and calls Set with the address of each symbol that it
// has. Later calls return the result of the first.
func (l *Library) Load() error {
	l.once.Do(l.load)
	return l.err
}

// load does the work of Load.
func (l *Library) load() {
	name := C.CString(l.Name)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	handle := C.verbena_open(name, &reason)
	if handle == nil {
		defer C.free(unsafe.Pointer(reason))
		l.err = &cerr.LibraryError{Library: l.Name, Debian: l.Debian, Fedora: l.Fedora, Reason: C.GoString(reason)}
		return
	}
	if C.verbena_other_errno(handle) != 0 {
		l.err = &cerr.StaticError{Library: l.Name}
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

// Lacks returns the error that the library does not have the symbol.
func (l *Library) Lacks(symbol string) error {
	return &cerr.SymbolError{Symbol: symbol, Library: l.Name}
}
