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

// Library is a C library that is opened on first use and stays open.
type Library struct {
	Name    string           // soname, such as libibverbs.so.1
	Debian  string           // packages that contain it
	Fedora  string           //
	Symbols []string         // functions to look up
	Since   map[string]Since // origin of functions that the library may lack
	Set     func(i int, f unsafe.Pointer)

	once sync.Once
	err  error
}

// Since is the origin of a function that was added to a library.
type Since struct {
	Release string // release of rdma-core
	Node    string // ELF version node, if the library exports the function itself
}

// Load opens the library. If a device was selected, Load uses the device's
// functions instead. It calls Set with the address of each symbol that it
// finds. Later calls return the result of the first.
func (l *Library) Load() error {
	l.once.Do(l.load)
	return l.err
}

func (l *Library) load() {
	find, err := devices.settle(l.Name)
	if err != nil {
		l.err = err
		return
	}
	if find != nil {
		l.take(find)
		return
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

// take sets the functions of a device.
func (l *Library) take(find Lookup) {
	for i, symbol := range l.Symbols {
		if f := find(symbol); f != nil {
			l.Set(i, f)
		}
	}
}

// Lacks returns the error for a symbol that the library does not have.
func (l *Library) Lacks(symbol string) error {
	since := l.Since[symbol]
	return cerr.Lacks(cerr.SymbolError{Symbol: symbol, Library: l.Name, Release: since.Release, Node: since.Node})
}
