// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
)

// own is the memory of the device's own.
var own = []check.Check{
	{
		Name: "memory.device", Proves: "a peer reaches memory of the device, and the program sees what it wrote", Features: []check.Feature{check.Own},
		Run: on(func(r *rig) {
			r.need(r.attr.MaxDeviceMemory >= 4096, "memory of the device")
			dm := offered(devmem.Alloc(r.dev, 4096, 0))(r.T, "memory of the device")
			mr := offered(dm.Register(r.pd, 0, dm.Len(), full))(r.T, "regions of memory of the device")
			a, _ := r.pair()
			sent := fill(a.mr.Bytes()[:1000], 1)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Write(1, mr.Remote().Sub(64, 1000), ibverbs.SendSignaled, a.mr.Sub(0, 1000))
			})
			r.succeed(a.sendCQ, 1)
			got := make([]byte, 1000)
			must(dm.ReadAt(got, 64))(r.T)
			r.want(bytes.Equal(sent, got), "other bytes were written")
			if !r.reads() {
				return
			}
			there := fill(got, 2)
			must(dm.WriteAt(got, 64))(r.T)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Read(1, mr.Remote().Sub(64, 1000), ibverbs.SendSignaled, a.mr.Sub(landing, 1000))
			})
			r.succeed(a.sendCQ, 1)
			r.want(bytes.Equal(there, a.mr.Bytes()[landing:][:1000]), "other bytes were read")
		}),
	},
}
