// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// DeviceConfig configures a device.
type DeviceConfig struct {
	Name string
	// Addresses are the addresses of the device. If there are none, it has
	// all addresses of the network that are not those of other devices.
	Addresses []netip.Addr
}

// equal reports whether c and d are the same.
func (c DeviceConfig) equal(d DeviceConfig) bool {
	return c.Name == d.Name && slices.Equal(c.Addresses, d.Addresses)
}

// DevicesVariable is the environment variable that has the devices if
// SetDevices was not called: "soft0=127.0.0.1;soft1=127.0.0.2,10.0.0.5". The
// name of a device without "=" stands for one without Addresses.
const DevicesVariable = "VERBENA_DEVICES"

// defaultDevices are the devices if neither SetDevices nor the environment
// chooses them.
var defaultDevices = []DeviceConfig{{Name: "soft0"}}

const (
	// maxDevices limits the devices of a process, which share the numbers of
	// its queue pairs.
	maxDevices = 16
	// maxName is the longest name, for which struct ibv_device has room.
	maxName = 63
	// maxAddresses is the size of a GID table.
	maxAddresses = 256
)

// SetDevices chooses the node's devices. No devices leave the choice to the
// environment. SetDevices fails if a device cannot have its name or addresses.
// It also fails once the network is chosen, unless the devices are in use.
func SetDevices(all []DeviceConfig) error {
	if len(all) == 0 {
		choices.Lock()
		if !choices.made && !choices.opened { // an earlier call may have failed after this
			choices.devices = nil
		}
		choices.Unlock()
		return CheckDevices()
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Addresses = append([]netip.Addr(nil), all[i].Addresses...) // nil if there are none
		for j, a := range all[i].Addresses {
			all[i].Addresses[j] = a.Unmap()
		}
	}
	if err := checkDevices(all); err != nil {
		return err
	}
	choices.Lock()
	defer choices.Unlock()
	if (choices.made || choices.opened) && !slices.EqualFunc(choices.devices, all, DeviceConfig.equal) {
		return errInUse
	}
	choices.devices = all
	return nil
}

// CheckDevices fails if the environment has devices that SetDevices would
// refuse.
func CheckDevices() error {
	_, err := devicesOfEnvironment()
	return err
}

// chosenDevices returns the devices that SetDevices or the environment chose.
// The choice is final. It returns the default with an error.
func chosenDevices() ([]DeviceConfig, error) {
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	var err error
	choices.devices, err = wantedDevices()
	return choices.devices, err
}

// wantedDevices returns the devices that are chosen so far. choices is locked.
func wantedDevices() ([]DeviceConfig, error) {
	if choices.devices != nil {
		return choices.devices, nil
	}
	return devicesOfEnvironment()
}

// devicesOfEnvironment returns the devices that the environment chooses, or the
// default. It returns the default with an error.
func devicesOfEnvironment() ([]DeviceConfig, error) {
	text := os.Getenv(DevicesVariable)
	if text == "" {
		return defaultDevices, nil
	}
	all, err := parseDevices(text)
	if err != nil {
		return defaultDevices, fmt.Errorf("%s=%s: %w", DevicesVariable, text, err)
	}
	return all, nil
}

// parseDevices returns the devices in a text such as that of DevicesVariable.
func parseDevices(text string) (all []DeviceConfig, err error) {
	for part := range strings.SplitSeq(text, ";") {
		name, list, some := strings.Cut(part, "=")
		d := DeviceConfig{Name: name}
		if some {
			if d.Addresses, err = parseAddresses(list); err != nil {
				return nil, fmt.Errorf("device %q: %w", name, err)
			}
		}
		all = append(all, d)
	}
	return all, checkDevices(all)
}

// parseAddresses returns the addresses in a text, which separates them by
// commas.
func parseAddresses(list string) (all []netip.Addr, err error) {
	for text := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address", text)
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

// checkDevices fails if a process cannot have these devices.
func checkDevices(all []DeviceConfig) error {
	if len(all) > maxDevices {
		return fmt.Errorf("there are %d devices: want %d at most", len(all), maxDevices)
	}
	names, owners, rest := map[string]bool{}, map[wire.GID]string{}, ""
	for _, d := range all {
		switch {
		case !isName(d.Name):
			return fmt.Errorf("device name %q: want 1 to %d letters, digits, \"_\", \"-\" and \".\", of which the first is a letter or digit", d.Name, maxName)
		case names[d.Name]:
			return fmt.Errorf("two devices have the name %q", d.Name)
		case len(d.Addresses) == 0 && rest != "":
			return fmt.Errorf("devices %q and %q have no addresses: only one device can have all that are not those of others", rest, d.Name)
		case len(d.Addresses) > maxAddresses:
			return fmt.Errorf("device %q has %d addresses: want %d at most", d.Name, len(d.Addresses), maxAddresses)
		}
		names[d.Name] = true
		if len(d.Addresses) == 0 {
			rest = d.Name
		}
		for _, a := range d.Addresses {
			if !isUnicast(a) {
				return fmt.Errorf("device %q: %v is not a unicast address", d.Name, a)
			}
			switch owner, taken := owners[wire.GIDOf(a)]; {
			case taken && owner == d.Name:
				return fmt.Errorf("device %q has the address %v twice", d.Name, a)
			case taken:
				return fmt.Errorf("devices %q and %q both have the address %v", owner, d.Name, a)
			}
			owners[wire.GIDOf(a)] = d.Name
		}
	}
	return nil
}

// isUnicast reports whether a port can have the address a.
func isUnicast(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast()
}

// isName reports whether a device can have that name, which is also that of a
// folder.
func isName(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && strings.IndexByte("_-.", c) >= 0:
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxName
}
