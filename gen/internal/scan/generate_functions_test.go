// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

func (g *generator) add(f *api.Function) {
	f.Header = generatedHeader
	g.want.Functions = append(g.want.Functions, f)
	g.known.Funcs[f.Name] = &conventions.Func{Name: f.Name}
}

// named returns a function with a signature, and names for its parameters.
func (g *generator) named() *api.Function {
	f := &api.Function{Name: g.name("f"), Type: g.signature(0)}
	for range f.Type.Params {
		f.Params = append(f.Params, g.name("p"))
	}
	return f
}

func (g *generator) function() {
	f := g.named()
	for n := g.pick(3); n >= 0; n-- { // declared more than once
		g.printf("%s;\n", prototype(f))
	}
	g.add(f)
}

// own makes an inline function with logic of its own.
func (g *generator) own() {
	f := g.named()
	if g.flip() {
		g.printf("static %s;\n", prototype(f))
	}
	g.printf("static inline %s\n{\n\tfor (;;) { ; }\n}\n", prototype(f))
	f.Inline = new(api.Inline)
	g.add(f)
}

// dispatch makes an inline function that calls an operation, and the struct
// that holds it.
func (g *generator) dispatch() {
	f := g.named()
	holder := g.name("s")
	object := &api.Type{Kind: api.Pointer, Elem: &api.Type{Name: "struct " + holder}}
	f.Type.Variadic = false
	f.Type.Params = append([]*api.Type{object}, f.Type.Params...)
	f.Params = append([]string{"o"}, f.Params...)
	op := &api.Member{Name: "op", Type: &api.Type{Kind: api.Pointer, Elem: f.Type}}
	g.printf("struct %s {\n\t%s;\n};\n", holder, op.Type.C("op"))
	arguments := ""
	for i, name := range f.Params {
		if i > 0 {
			arguments += ", "
		}
		arguments += name
	}
	result := "return "
	if f.Type.Elem.IsVoid() {
		result = ""
	}
	g.printf("static inline %s\n{\n\t%so->op(%s);\n}\n", prototype(f), result, arguments)
	f.Inline = &api.Inline{Call: "o->op"}
	g.add(f)
	g.want.Structs = append(g.want.Structs, &api.Struct{Name: "struct " + holder, Header: generatedHeader, Members: []*api.Member{op}})
}

func (g *generator) macro() {
	name := g.name("M")
	m := &api.Macro{Name: name, Header: generatedHeader, Type: "int"}
	switch n := int64(g.pick(256)); g.pick(6) {
	case 0:
		m.Value = n
		g.printf("#define %s %d\n", name, n)
	case 1:
		m.Value = -n
		g.printf("#define %s (-%d)\n", name, n)
	case 2:
		m.Type, m.Value = "unsigned int", n<<24
		g.printf("#define %s \\\n\t(%#xu << 24)\n", name, n)
	case 3:
		m.Type, m.Value = "unsigned long long", -1
		g.printf("#define %s 0xffffffffffffffffULL /* %d */\n", name, n)
	case 4:
		v := g.want.Enums[0].Values[0]
		m.Value, m.Enumerator = v.Value, v.Name
		g.printf("#define %s %s\n", name, v.Name)
	default:
		tag := g.tags[g.pick(len(g.tags))]
		g.printf("#define %s %s\n", name, tag)
		g.want.Aliases = append(g.want.Aliases, &api.Alias{Name: name, Header: generatedHeader, Target: tag})
		return
	}
	g.want.Macros = append(g.want.Macros, m)
}

// noise makes what declares nothing.
func (g *generator) noise() {
	texts := []string{
		"\n", "// int a;\n", "/*\n * struct lost { int a;\n */\n", ";\n", "struct opaque;\n",
		"#if 0\nint not_here(\n#else\n#endif\n", "#ifdef NOT_DEFINED\n}}}\n#endif\n", "#define CALL(x) ((x) + 1)\n", "#define NOTHING\n",
		"#define TEXT \"text\"\n", "#define OPEN {\n", "#undef OPEN\n", "#pragma once\n", "#include <stdint.h>\n", "_Static_assert(1 == 1, \"\");\n",
	}
	g.printf("%s", texts[g.pick(len(texts))])
}

// unsupported makes one line that must be refused.
func (g *generator) unsupported() {
	a, b := g.name("a"), g.name("b")
	texts := []string{
		"struct %s { int %s : 33; };", "struct %s { int %s; } __attribute__((vector_size(16)));", "struct %s { char %s[]; };", "struct %s { long double %s; };",
		"struct %s { int x; long x; int %s; };", "typedef struct { int x; } *%s, *%s;", "extern int %s, %s = 1;", "int %s(long double %s);",
		"struct %s { int %s __attribute__((aligned(3))); };", "struct %s { _Atomic int %s; };", "struct %s { enum %s *x; };",
		"int %s(int x, int x, int %s);", "static int %s(int %s);", "int %s(int %s) __asm__(\"x\");", "struct %s { };  struct %s;",
		"struct %s { struct tagged%s { int x; }; int y; };", "struct %s { float %s : 3; };", "int %s(int %s) { return 1; }",
		"static int %s; static int %s;", "typedef __int128 %s; typedef __int128 %s;", "struct %s { char %s : 2 __attribute__((aligned(4))); };",
	}
	g.bad = append(g.bad, g.line)
	g.known.Funcs[a] = &conventions.Func{Name: a}
	g.known.Enums[b] = &conventions.Enum{Key: b}
	g.printf("%s\n", fmt.Sprintf(texts[g.pick(len(texts))], a, b))
}
