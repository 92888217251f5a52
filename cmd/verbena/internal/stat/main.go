// SPDX-License-Identifier: Apache-2.0

// Package stat is the command verbena stat. It shows the counters of RDMA
// devices, and which processes have objects on them.
package stat

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs/stat"
)

// options holds the values of the flags.
type options struct {
	device, sysfs                     string
	resources, transfers, all, asJSON bool
	seconds, count                    int
}

// Program returns the program of the command.
func Program() *program.Program {
	o := &options{}
	return &program.Program{
		Name: "verbena stat", Summary: "show the counters of devices, how they grow, and whose objects there are", Misused: program.ExitMisused,
		Flags: o.flags, Run: o.run,
		Usage: "verbena stat [-d device] [-v] [-w seconds [-c count]] [-s sysfs] [-j]\nverbena stat -t [-d device] [-v] [-w seconds [-c count]] [-j]\nverbena stat -r [-d device] [-v] [-j]",
		Text: `
Shows the counters of RDMA devices and their ports that are not 0, with their
units; with -v all of them, and what they mean. With -w, shows once in so many
seconds how much each has grown in a second, if it has, until it is interrupted.

With -r, shows which processes have objects on the devices, and how many: queue
pairs, completion queues, memory regions with their bytes, protection domains
and cm_ids; with -v each object. Names in brackets are parts of the kernel. Only
the processes of this PID namespace are shown, and the kernel's own objects only
in the first one.

With -t, shows what programs move with package transfer: for each peer of their
engines requests and notifications, and on each device bytes, connections and
work requests, with those that were repeated. Only the programs of this user and
network namespace are shown, and of these the engines that are published
(transfer.Config.Publish).

JSON has all counters, as numbers with all of their digits. They may have 64
bits: JavaScript, and jq before 1.7, round those above 2^53, by less than one
part in 2^53. With -w there is one object on each line, whose counters have
"per_second" as well, but for those that have begun again.

With VERBENA_DEVICE=soft in the environment, it shows the device in user space
of each process that has it and answers, instead of the machine's devices, and
with -r its queue pairs only. verbena softroce stat says more.

Exit status: 0, also if it was interrupted with -w; 1 if there is no device, or
with -t no peer, or if it cannot be asked; 2 for wrong arguments.

Example: verbena stat -w 1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.device, "device", "d", "", "`name` of the device to show (default: all)")
	f.BoolVarP(&o.all, "verbose", "v", false, "show all counters, with what they mean, or each object")
	f.BoolVarP(&o.resources, "resources", "r", false, "show the objects of processes")
	f.BoolVarP(&o.transfers, "transfers", "t", false, "show what programs move with package transfer")
	f.Number(&o.seconds, "watch", "w", 1, math.MaxInt32, "show rates once in so many `seconds`")
	f.Number(&o.count, "count", "c", 0, math.MaxInt32, "with -w, exit after this `number` of times (0: when interrupted)")
	f.StringVarP(&o.sysfs, "sysfs", "s", string(stat.Default), "`folder` where sysfs is mounted")
	f.JSON(&o.asJSON)
}

func (o *options) run(ctx context.Context, out program.Output) error {
	switch {
	case o.resources && o.seconds != 0:
		return program.Misuse("-r and -w exclude each other")
	case o.resources && o.transfers:
		return program.Misuse("-r and -t exclude each other")
	case o.count != 0 && o.seconds == 0:
		return program.Misuse("-c without -w")
	}
	source := source(kernel{stat.Sysfs(o.sysfs)})
	switch {
	case o.transfers:
		source = engines{growing: o.seconds != 0}
	case soft():
		source = userSpace{}
	}
	switch {
	case o.resources:
		return o.showResources(ctx, out, source)
	case o.seconds != 0:
		return o.watch(ctx, out, source)
	}
	devices, err := o.devices(ctx, source)
	if err != nil {
		return err
	}
	if o.asJSON {
		return out.JSON(report{Devices: devices})
	}
	return o.print(out.Stdout, devices)
}

// source provides the devices to show.
type source interface {
	devices(ctx context.Context) ([]device, error)
	resources(ctx context.Context) (stat.Resources, error)
}

// device is a device. If it is in user space, it has its process. If it is one
// of an engine's, it has that of the engine, and the engine's peer; the peer's
// other counters have no name of a device.
type device struct {
	stat.Device
	Process *stat.Owner `json:"process,omitempty"`
	Peer    string      `json:"peer,omitempty"`
	Error   string      `json:"error,omitempty"` // reason why the engine has not answered; then there is only its process
}

// kernel is the source of the kernel's devices.
type kernel struct{ sysfs stat.Sysfs }

func (k kernel) devices(context.Context) ([]device, error) {
	found, err := k.sysfs.Devices()
	var all []device
	for _, d := range found {
		all = append(all, device{Device: d})
	}
	return all, err
}

func (kernel) resources(context.Context) (stat.Resources, error) { return stat.AllResources() }

// The errors if there is nothing to show.
var (
	errNone     = errors.New("there is no RDMA device; verbena doctor finds out why")
	errNoneSoft = errors.New("no process uses the device in user space")
	errNoPeer   = errors.New("no published engine of this user's programs has a peer (transfer.Config.Publish)")
)

// devices returns the devices that the flags select. It fails if there is none.
func (o *options) devices(ctx context.Context, s source) ([]device, error) {
	found, err := s.devices(ctx)
	if err != nil {
		return nil, err
	}
	var wanted []device
	for _, d := range found {
		if o.device == "" || o.device == d.Name {
			wanted = append(wanted, d)
		}
	}
	switch {
	case len(wanted) > 0:
		return wanted, nil
	case len(found) > 0 && o.transfers:
		return nil, fmt.Errorf("no peer is connected by device %q", o.device)
	case len(found) > 0:
		return nil, fmt.Errorf("there is no device %q; verbena devices lists those that there are", o.device)
	case o.transfers:
		return nil, errNoPeer
	case soft():
		return nil, errNoneSoft
	}
	return nil, errNone
}
