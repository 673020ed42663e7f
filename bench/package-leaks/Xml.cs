// An XmlSerializer with an XmlRootAttribute makes an assembly, which is never unloaded: one for each call (`new`), or one (`keep`).
using System;
using System.Collections.Generic;
using System.IO;
using System.Threading;
using System.Xml.Serialization;

public class Order
{
    public int Number;
    public string Text;
}

public static class Program
{
    static readonly Dictionary<int, byte[]> answers = new Dictionary<int, byte[]>();
    static XmlSerializer kept;

    static XmlSerializer Serializer(bool keeps)
    {
        if (keeps && kept != null)
            return kept;
        return kept = new XmlSerializer(typeof(Order), new XmlRootAttribute("order"));
    }

    static int Handle(int number, bool keeps)
    {
        var text = new StringWriter();
        Serializer(keeps).Serialize(text, new Order { Number = number, Text = "t" });
        return text.ToString().Length;
    }

    public static void Main(string[] arguments)
    {
        var end = DateTime.UtcNow.AddSeconds(double.Parse(arguments[0]));
        for (int number = 0; DateTime.UtcNow < end; number++) {
            Handle(number, arguments[1] == "keep");
            answers[number % 2000] = new byte[600];
            if (number % 10 == 0)
                Thread.Sleep(3);
        }
        GC.Collect();
    }
}
