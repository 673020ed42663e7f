// Writes the line table of a program that mcs has compiled (program.exe.mdb) as a portable PDB (program.pdb).
using System.Linq;
using Mono.Cecil;
using Mono.Cecil.Cil;
using Mono.CompilerServices.SymbolWriter;

static class PortablePdb
{
    static void Main(string[] arguments)
    {
        string path = arguments[0];
        var table = MonoSymbolFile.ReadSymbolFile(path + ".mdb");
        var module = ModuleDefinition.ReadModule(path, new ReaderParameters { InMemory = true });
        var methods = module.GetTypes().SelectMany(type => type.Methods).ToDictionary(method => method.MetadataToken.ToInt32());
        foreach (var entry in table.Methods) {
            var document = new Document(entry.CompileUnit.SourceFile.FileName);
            var body = methods[entry.Token].Body;
            foreach (var line in entry.GetLineNumberTable().LineNumbers) {
                var instruction = body.Instructions.FirstOrDefault(it => it.Offset == line.Offset);
                if (instruction == null || line.IsHidden)
                    continue;
                var point = new SequencePoint(instruction, document);
                point.StartLine = point.EndLine = line.Row;
                point.StartColumn = 1;
                point.EndColumn = 2;
                body.Method.DebugInformation.SequencePoints.Add(point);
            }
        }
        module.Write(path, new WriterParameters { WriteSymbols = true, SymbolWriterProvider = new PortablePdbWriterProvider() });
    }
}
