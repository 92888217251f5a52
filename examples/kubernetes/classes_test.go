// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
)

// object is a value of CEL's type map(string, dyn).
type object = map[string]any

// The classes select the devices of their driver that can do RDMA. Kubernetes
// evaluates the expressions in an environment with more functions.
func TestClassesSelectDevices(t *testing.T) {
	c, err := readFiles(t).build()
	require.NoError(t, err)
	env, err := cel.NewEnv(cel.Variable("device", cel.MapType(cel.StringType, cel.DynType)))
	require.NoError(t, err)
	const sriov = "sriovnetwork.k8snetworkplumbingwg.io"
	device := func(driver string, attributes object) object {
		return object{"driver": driver, "attributes": object{driver: attributes}}
	}
	devices := map[string]object{
		"dranet's":            device("dra.net", object{"rdma": true}),
		"dranet's, Ethernet":  device("dra.net", object{"rdma": false}),
		"dranet's, unknown":   device("dra.net", object{}),
		"a function":          device(sriov, object{"rdmaCapable": true}),
		"a function, without": device(sriov, object{"rdmaCapable": false}),
		"a GPU":               device("gpu.example", object{"rdma": true, "rdmaCapable": true}),
	}
	want := map[string]string{"rdma.dra.net": "dranet's", "rdma." + sriov: "a function"}
	require.Len(t, c.classes, len(want))
	for _, class := range c.classes {
		ast, issues := env.Compile(class.Spec.Selectors[0].CEL.Expression)
		require.NoError(t, issues.Err(), class.Name)
		program, err := env.Program(ast)
		require.NoError(t, err)
		for name, device := range devices {
			selected, _, err := program.Eval(object{"device": device})
			require.NoError(t, err, "%s: %s", class.Name, name)
			require.Equal(t, name == want[class.Name], selected.Value(), "%s: %s", class.Name, name)
		}
	}
	for _, expression := range []string{`device.driver = "dra.net"`, `devices.driver == "dra.net"`, `device.driver == `} {
		_, issues := env.Compile(expression)
		require.Error(t, issues.Err(), expression)
	}
}
