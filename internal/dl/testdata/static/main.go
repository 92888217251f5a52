// Command static opens a library and says how that went. Its test links it
// statically.
package main

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/internal/dl"
)

func main() {
	l := dl.Library{Name: "libc.so.6", Symbols: []string{"getpid"}, Set: func(int, unsafe.Pointer) {}}
	err := l.Load()
	fmt.Println(errors.Is(err, errors.ErrUnsupported), err)
}
