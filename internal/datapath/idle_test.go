// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// The idle function is called each time that a queue is found empty, and the
// completions that it adds are polled.
func TestIdle(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	wcs := make([]datapath.WC, 8)
	q := datapath.NewQueue(d.PlainCQ())
	calls := 0
	brings := 0 // completions, with the third call
	datapath.SetDevice(&datapath.Device{
		Idle: func(cq unsafe.Pointer) {
			require.Equal(t, q.CQ, cq)
			if calls++; calls == 3 && brings > 0 {
				d.Set(fakeverbs.Script{Completions: brings})
			}
		},
		Relieve: func() bool { return false },
	})
	defer datapath.SetDevice(nil)
	exchange := func(least int, how datapath.How, budget time.Duration, posts *libibverbs.SendWr) (e datapath.Exchanged) {
		qp := d.QP()
		datapath.Exchange(&qp.QpBase, nil, unsafe.Pointer(&qp.QpBase), 0, posts, q, least, len(wcs), ptr(&wcs[0]), how, budget, &e)
		return e
	}
	spin := func(budget time.Duration) (p datapath.Polled) {
		datapath.Spin(q, len(wcs), ptr(&wcs[0]), budget, &p)
		return p
	}
	for name, test := range map[string]struct {
		script fakeverbs.Script
		brings int
		run    func() int64
		value  int64
		calls  int
	}{
		"poll":        {fakeverbs.Script{}, 0, func() int64 { return poll(q, wcs) }, 0, 1},
		"poll some":   {fakeverbs.Script{Completions: 2}, 0, func() int64 { return poll(q, wcs) }, 2, 0},
		"poll error":  {fakeverbs.Script{PollError: -5}, 0, func() int64 { return poll(q, wcs) }, -5, 0},
		"spin":        {fakeverbs.Script{}, 5, func() int64 { return spin(time.Minute).Value }, 5, 3},
		"spin some":   {fakeverbs.Script{Completions: 5}, 0, func() int64 { return spin(time.Minute).Value }, 5, 0},
		"spin error":  {fakeverbs.Script{PollError: -5}, 0, func() int64 { return spin(time.Minute).Value }, -5, 0},
		"no budget":   {fakeverbs.Script{}, 0, func() int64 { return spin(0).Value }, 0, 0},
		"exchange":    {fakeverbs.Script{Completions: 2}, 4, func() int64 { return exchange(6, datapath.Spinning, time.Minute, nil).Polled.Value }, 6, 3},
		"in one call": {fakeverbs.Script{Completions: 2}, 0, func() int64 { return exchange(2, datapath.Spinning, time.Minute, nil).Polled.Value }, 2, 0},
		"too few":     {fakeverbs.Script{Completions: 2}, 0, func() int64 { return exchange(3, datapath.Spinning, 0, nil).Polled.Value }, 2, 0},
		"not posted": {fakeverbs.Script{PostError: 12}, 0, func() int64 {
			e := exchange(1, datapath.Spinning, time.Minute, &libibverbs.SendWr{})
			require.EqualValues(t, 12, e.Sent.Value)
			return e.Polled.Value
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d.Set(test.script)
			calls, brings = 0, test.brings
			clear(wcs)
			require.Equal(t, test.value, test.run())
			require.Equal(t, test.calls, calls)
		})
	}
	require.NotZero(t, spin(0).Now)
}

// A device is relieved before requests are posted, and resumes afterwards.
func TestRelieve(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	qp := d.QP()
	q := datapath.NewQueue(d.PlainCQ())
	wcs := make([]datapath.WC, 8)
	wr := &libibverbs.SendWr{}
	var told []string
	relieves := true
	datapath.SetDevice(&datapath.Device{
		Idle: func(unsafe.Pointer) {},
		Relieve: func() bool {
			told = append(told, fmt.Sprint("relieve ", d.Requests()))
			return relieves
		},
		Resume: func() { told = append(told, fmt.Sprint("resume ", d.Requests())) },
	})
	defer datapath.SetDevice(nil)
	exchange := func(how datapath.How, wr *libibverbs.SendWr) {
		var e datapath.Exchanged
		datapath.Exchange(&qp.QpBase, nil, unsafe.Pointer(&qp.QpBase), 0, wr, q, 0, len(wcs), ptr(&wcs[0]), how, 0, &e)
	}
	for name, test := range map[string]struct {
		run  func()
		want []string
	}{
		"post": {func() {
			var p datapath.Posted
			begun := datapath.BeginSend()
			datapath.PostSend(unsafe.Pointer(&qp.QpBase), 0, wr, &p)
			if begun {
				datapath.EndSend()
			}
		}, []string{"relieve 0", "resume 1"}},
		"exchange":           {func() { exchange(datapath.Spinning, wr) }, []string{"relieve 0", "resume 1"}},
		"exchange receives":  {func() { exchange(datapath.Spinning, nil) }, nil},
		"exchange and sleep": {func() { exchange(datapath.Sleeping, wr) }, nil}, // the worker must do the work during the call
	} {
		t.Run(name, func(t *testing.T) {
			d.Set(fakeverbs.Script{})
			told = nil
			test.run()
			require.Equal(t, test.want, told)
			d.Set(fakeverbs.Script{})
			relieves = false
			defer func() { relieves = true }()
			told = nil
			test.run()
			require.Equal(t, test.want[:min(len(test.want), 1)], told)
		})
	}
}
