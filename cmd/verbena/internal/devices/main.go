// SPDX-License-Identifier: Apache-2.0

// Package devices is the command verbena devices. It shows the RDMA devices of
// this machine and what they can do.
package devices

import (
	"context"
	"errors"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
)

// options holds the values of the flags.
type options struct {
	device            string
	all, gids, asJSON bool
}

// Program returns the program of the command.
func Program() *program.Program { return (&options{}).program() }

func (o *options) program() *program.Program {
	return &program.Program{
		Name: "verbena devices", Summary: "list the RDMA devices of this machine, their ports and GIDs", Flags: o.flags, Run: o.run, Misused: program.ExitMisused,
		Usage: "verbena devices [-d device] [-v | -g] [-j]",
		Text: `
Lists the RDMA devices of this machine and their ports, one line for each port.
MTU is in bytes: the active one, and the largest. SPEED is the link's, in Gb/s,
with its width and lane speed. INTERFACE is the network interface.

With -g, prints one line for each GID of each port, with its type and, if the
GID stands for an IPv4 address, the address.

With VERBENA_DEVICE=soft in the environment, it shows the device in user space
that all of these commands have, instead of the machine's.

Exit status: 0 if there is a device and all devices answered; 1 if not; 2 for
wrong arguments.

Example: verbena devices -g -d rxe0`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.device, "device", "d", "", "`name` of the device to show (default: all)")
	f.BoolVarP(&o.all, "verbose", "v", false, "print everything known about the devices")
	f.BoolVarP(&o.gids, "gids", "g", false, "print only the GIDs")
	f.JSON(&o.asJSON)
}

func (o *options) run(_ context.Context, out program.Output) error {
	if o.all && o.gids {
		return program.Misuse("-v and -g exclude each other")
	}
	devices, err := query(o.device)
	if len(devices) == 0 {
		return err
	}
	return errors.Join(o.print(out, devices), err)
}

// query returns the device with the name, or all devices if the name is empty.
// If some devices fail, query returns the others and an error.
func query(name string) (devices []ibverbs.DeviceInfo, err error) {
	found, err := ibverbs.Devices()
	if name != "" || err != nil || len(found) == 0 {
		found = []ibverbs.DeviceEntry{{Name: name}} // the error of opening it names the devices
	}
	err = nil
	for _, d := range found {
		info, e := ibverbs.QueryDeviceInfo(d.Name)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		devices = append(devices, info)
	}
	return devices, err
}

func (o *options) print(out program.Output, devices []ibverbs.DeviceInfo) error {
	switch {
	case o.gids && o.asJSON:
		return out.JSON(gids(devices))
	case o.gids:
		return printGIDs(out.Stdout, gids(devices))
	case o.asJSON:
		return out.JSON(objects(devices))
	case o.all:
		printAll(out.Stdout, devices)
		return nil
	}
	return printPorts(out.Stdout, devices)
}
