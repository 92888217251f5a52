// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"unsafe"

	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// detectorCalls has the calls by which threads that post and poll tell the race
// detector about the memory of requests. C makes them only in programs that are
// built with -race.
var detectorCalls = []call{
	func(args unsafe.Pointer) answer {
		a := (*struct {
			queue *engine.WorkQueue
			end   uint32
		})(args)
		engine.TellPosted(a.queue, a.queue.Posted, a.end)
		return answer{}
	},
	func(args unsafe.Pointer) answer {
		detector.Completed([]uint32{*(*uint32)(args)})
		return answer{}
	},
}
