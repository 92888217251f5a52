// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/dl"
)

// Each reason is that of the library which is missing, however often goroutines
// change threads, and although threads end, which takes their text along.
func TestReasonsOfManyThreads(t *testing.T) {
	var group sync.WaitGroup
	for g := range 16 {
		group.Go(func() {
			for i := range 1000 {
				l := dl.Library{Name: fmt.Sprintf("libverbena-%d-%d.so.1", g, i)}
				var missing *cerr.LibraryError
				if err := l.Load(); !errors.As(err, &missing) || !strings.HasPrefix(missing.Reason, l.Name+": cannot open") {
					t.Errorf("%s: %v", l.Name, err)
					return
				}
				if i%100 == 0 {
					group.Go(func() {
						runtime.LockOSThread() // never unlocked, so that the thread ends
						_ = (&dl.Library{Name: "libverbena-none.so.1"}).Load()
					})
				}
			}
		})
	}
	group.Wait()
}
