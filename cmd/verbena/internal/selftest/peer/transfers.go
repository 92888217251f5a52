// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/transfer"
)

// The regions of the service Transfers, of RegionSize bytes each.
const (
	Readable   = "selftest readable" // has Pattern
	Writable   = "selftest writable"
	RegionSize = 256 << 10
)

// EngineConfig returns the config of an engine at either end.
func EngineConfig(device string) transfer.Config { return transfer.Config{Devices: []string{device}} }

// transfers listens for engines, and answers each notification with the CRC-32
// of the writable region, followed by the notification.
func (v *visit) transfers(request *rdmacm.Request, local string, _ byte) (s service, err error) {
	device, err := request.Event().ID.Device()
	if err != nil {
		return s, err
	}
	engine, err := transfer.New(EngineConfig(device.Name()))
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, engine.Close())
		}
	}()
	readable, err := engine.Alloc(RegionSize, transfer.RegionConfig{Name: Readable, Access: transfer.ReadAccess})
	if err != nil {
		return s, err
	}
	copy(readable.Bytes(), Pattern(RegionSize))
	writable, err := engine.Alloc(RegionSize, transfer.RegionConfig{Name: Writable, Access: transfer.WriteAccess})
	if err != nil {
		return s, err
	}
	ln, err := engine.Listen(v.ctx, local, transfer.ListenConfig{Backlog: 4})
	if err != nil {
		return s, err
	}
	run := func(ctx context.Context) {
		for {
			p, err := ln.Accept(ctx)
			if err != nil {
				return // the service ends
			}
			for m, err := range p.Notifications(ctx) {
				if err != nil {
					break
				}
				answer := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(writable.Bytes()))
				if err := p.Send(ctx, append(answer, m[:min(len(m), transfer.MaxNotification-4)]...)); err != nil {
					break
				}
			}
		}
	}
	return service{ln.Addr(), run, engine.Close}, nil
}
