// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Variable is the environment variable that selects a device of the program
// instead of the installed libraries.
const Variable = "VERBENA_DEVICE"

// packages has the import path of the package that provides each known device.
var packages = map[string]string{"soft": "github.com/verbena-go/verbena/softroce"}

// Lookup returns the address of the C function with that name, or nil if there
// is none.
type Lookup func(symbol string) unsafe.Pointer

// Device is a device that is part of the program. Its functions replace those
// of all libraries.
type Device struct {
	Find Lookup
	// Open makes the device ready. options is what follows the name and a
	// colon in Variable. Open is called at most once, and only if Variable
	// has selected the device.
	Open func(options string) error
}

// Provide makes a device known. The package that implements the device calls it
// in init.
func Provide(name string, d Device) { devices.provide(name, d) }

// Use selects a device by name, even if Variable says something else. It fails
// if the program does not have the device, or if an installed library has
// already been loaded.
func Use(name string) error { return devices.use(name) }

var devices choice

// choice decides where C functions come from: from a device of the program or
// from the installed libraries. Once a library has been loaded, the decision
// cannot change.
type choice struct {
	mutex    sync.Mutex
	provided map[string]Device
	name     string // name of the selected device; empty: the installed libraries
	settled  string // library that was loaded first; empty: none was loaded yet
	err      error  // error of the selection, which every Load returns
}

// provide does the work of Provide.
func (c *choice) provide(name string, d Device) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.provided == nil {
		c.provided = map[string]Device{}
	}
	c.provided[name] = d
}

// use does the work of Use.
func (c *choice) use(name string) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.settled != "" && c.name != name {
		return fmt.Errorf("the device %q cannot be used any more: %s was loaded before; choose the device first", name, c.settled)
	}
	if err := c.known(name); err != nil {
		return err
	}
	c.name = name
	cerr.InProgram()
	return nil
}

// known returns an error if the program does not have the device.
func (c *choice) known(name string) error {
	if c.provided[name].Find != nil {
		return nil
	}
	if path, ok := packages[name]; ok {
		return fmt.Errorf("this program does not have the device %q: add to it: import _ %q", name, path)
	}
	names := slices.Collect(maps.Keys(packages))
	sort.Slice(names, func(i, j int) bool { return names[i] < names[j] })
	return fmt.Errorf("unknown device %q (known: %s); if VERBENA_DEVICE is not set, the devices of the installed libraries are used",
		name, strings.Join(names, ", "))
}

// open selects a device. value is the value of Variable, which names the
// device.
func (c *choice) open(value string) error {
	name, options, _ := strings.Cut(value, ":")
	c.name = name
	if err := c.known(name); err != nil {
		return err
	}
	cerr.InProgram()
	return c.provided[name].Open(options)
}

// settle returns the function that looks up a library's functions in the
// device, or nil if the library must be opened. The first call makes the
// decision for all libraries.
func (c *choice) settle(library string) (Lookup, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.settled == "" {
		c.settled = library
		if value := os.Getenv(Variable); c.name == "" && value != "" {
			if err := c.open(value); err != nil {
				c.err = fmt.Errorf("%s=%s: %w", Variable, value, err)
			}
		}
	}
	return c.provided[c.name].Find, c.err
}
