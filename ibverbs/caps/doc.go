// SPDX-License-Identifier: Apache-2.0

// Package caps describes what devices can do.
//
// QueryDevice of package ibverbs returns its types, as fields of DeviceAttr.
// [Flags] says which abilities a device has. Each of the other types holds the
// limits of one ability, which are 0 if the device lacks it:
//
//	attr, err := device.QueryDevice()
//	if err != nil {
//		return err
//	}
//	if attr.Capabilities&caps.XRC == 0 {
//		return errors.New("the device has no extended reliable connections")
//	}
//	if attr.TSO.QPTypes.Has(ibverbs.QPTypeRawPacket) {
//		fmt.Println("cuts up to", attr.TSO.MaxPayload, "bytes into TCP segments")
//	}
//
// The values of fields with a type of package libibverbs have names in that
// package.
package caps
