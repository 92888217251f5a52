// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package umad

/*
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The library's functions, NULL where it has none.
static union {
	struct {
		int (*open_port)(const char *device, int port);
		int (*close_port)(int id);
		int (*register_class)(int id, int class, int version, uint8_t rmpp, long *methods);
		int (*unregister)(int id, int agent);
		int (*send)(int id, int agent, void *umad, int length, int timeout, int retries);
		int (*recv)(int id, void *umad, int *length, int timeout);
		size_t (*size)(void);
	} fn;
	void *slot[7];
} lib;

static void verbena_umad_set(int i, void *function) { lib.slot[i] = function; }

typedef struct {
	int value;
	int error;
} verbena_umad_result;

#define CALL(name, ...) \
	do { \
		verbena_umad_result r = { -1, INT32_MIN }; \
		if (lib.fn.name) { \
			errno = 0; \
			r.value = lib.fn.name(__VA_ARGS__); \
			r.error = errno; \
		} \
		return r; \
	} while (0)

static verbena_umad_result verbena_umad_open_port(const char *device, int port) { CALL(open_port, device, port); }
static verbena_umad_result verbena_umad_close_port(int id) { CALL(close_port, id); }
static verbena_umad_result verbena_umad_register(int id, int class) { CALL(register_class, id, class, 1, 0, NULL); }
static verbena_umad_result verbena_umad_unregister(int id, int agent) { CALL(unregister, id, agent); }
static verbena_umad_result verbena_umad_size(void) { CALL(size); }
static verbena_umad_result verbena_umad_send(int id, int agent, void *umad, int length, int timeout)
{
	CALL(send, id, agent, umad, length, timeout, 0);
}

// length is in and out; it comes back as the value of a call that succeeded.
static verbena_umad_result verbena_umad_recv(int id, void *umad, int length, int timeout)
{
	verbena_umad_result r = { -1, INT32_MIN };

	if (lib.fn.recv) {
		errno = 0;
		r.value = lib.fn.recv(id, umad, &length, timeout);
		r.error = errno;
		if (r.value >= 0)
			r.value = length;
	}
	return r;
}

#cgo noescape verbena_umad_send
#cgo noescape verbena_umad_recv
*/
import "C"

import (
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/dl"
)

var library = dl.Library{
	Name: "libibumad.so.3", Debian: "libibumad3", Fedora: "libibumad", Apart: true,
	// In the order of the table above.
	Symbols: []string{
		"umad_open_port", "umad_close_port", "umad_register", "umad_unregister", "umad_send", "umad_recv", "umad_size",
	},
	Set: func(i int, f unsafe.Pointer) { C.verbena_umad_set(C.int(i), f) },
}

// value returns the result of a function, or its error.
func value(op string, r C.verbena_umad_result) (int, error) {
	if r.error == cerr.Missing {
		return 0, library.Lacks(op)
	}
	return int(r.value), cerr.Count(op, int64(r.value), int32(r.error))
}

// Open opens a port of a device, and returns its number. An empty name and port
// 0 stand for the first that is active.
func Open(device string, port int) (id int, err error) {
	if err := library.Load(); err != nil {
		return 0, err
	}
	var name *C.char
	if device != "" {
		name = C.CString(device)
		defer C.free(unsafe.Pointer(name))
	}
	return value("umad_open_port", C.verbena_umad_open_port(name, C.int(port)))
}

// Close closes a port.
func Close(id int) error {
	_, err := value("umad_close_port", C.verbena_umad_close_port(C.int(id)))
	return err
}

// Register registers for the answers to requests of a class, and returns the
// number of the agent.
func Register(id int, class uint8) (agent int, err error) {
	return value("umad_register", C.verbena_umad_register(C.int(id), C.int(class)))
}

// Unregister takes a registration back.
func Unregister(id, agent int) error {
	_, err := value("umad_unregister", C.verbena_umad_unregister(C.int(id), C.int(agent)))
	return err
}

// HeaderSize returns the length of the header with the running kernel.
func HeaderSize() (int, error) { return value("umad_size", C.verbena_umad_size()) }

// Send sends a datagram, which stands behind its header. If nothing answers it
// within a number of milliseconds, it is received with an error.
func Send(id, agent int, umad []byte, timeout int) error {
	_, err := value("umad_send", C.verbena_umad_send(
		C.int(id), C.int(agent), unsafe.Pointer(unsafe.SliceData(umad)), C.int(len(umad)-Size), C.int(timeout)))
	return err
}

// Receive receives a datagram and its header, waiting up to a number of
// milliseconds, and returns the length of the datagram.
func Receive(id int, umad []byte, timeout int) (length int, err error) {
	return value("umad_recv", C.verbena_umad_recv(C.int(id), unsafe.Pointer(unsafe.SliceData(umad)), C.int(len(umad)-Size), C.int(timeout)))
}
